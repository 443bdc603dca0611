"""The restricted Pod Security Standard, and what this project asks of its pods beyond it.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/, levels baseline and
restricted.
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.charts.render import Object

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod: Object) -> list[str]:
    """Return what the restricted standard forbids in a pod's spec, each with its path."""
    return [*_of_pod(pod), *_of_containers(pod)]


def lapses(pod: Object) -> list[str]:
    """Return what the standard allows and we do not: a writable root, no resources."""
    found = []
    for path, container in containers_of(pod):
        if not (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            found.append(f"{path}.securityContext.readOnlyRootFilesystem must be true")
        resources = container.get("resources") or {}
        if not {"cpu", "memory"} <= (resources.get("requests") or {}).keys():
            found.append(f"{path}.resources.requests must name cpu and memory")
        if "memory" not in (resources.get("limits") or {}):
            found.append(f"{path}.resources.limits must name memory")
    return found


def containers_of(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yield every container with its path."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod.get(field) or ():
            yield f"{field}[{container['name']}]", container


def _of_pod(pod: Object) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"{field} must be false"
    context = pod.get("securityContext") or {}
    if context.get("sysctls"):
        yield "securityContext.sysctls must be empty"
    for volume in pod.get("volumes") or ():
        for kind in volume.keys() - {"name"} - _VOLUMES:
            yield f"volumes[{volume['name']}].{kind} is no allowed kind of volume"
    yield from _of_context("", context)


def _of_containers(pod: Object) -> Iterator[str]:
    pods = pod.get("securityContext") or {}
    for path, container in containers_of(pod):
        own = container.get("securityContext") or {}
        yield from _of_context(f"{path}.", own)
        if not own.get("runAsNonRoot", pods.get("runAsNonRoot")):
            yield f"{path}.securityContext.runAsNonRoot must be true"
        profile = own.get("seccompProfile") or pods.get("seccompProfile") or {}
        if profile.get("type") not in _PROFILES:
            yield f"{path}.securityContext.seccompProfile.type must be one of {_PROFILES}"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{path}.securityContext.allowPrivilegeEscalation must be false"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()):
            yield f"{path}.securityContext.capabilities.drop must have ALL"
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield f"{path}.securityContext.capabilities.add may have NET_BIND_SERVICE only"
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield f"{path}.ports[{port.get('name')}].hostPort must be absent"


def _of_context(path: str, context: Object) -> Iterator[str]:
    """Check what neither a pod's nor a container's own context may say."""
    if context.get("runAsUser") == 0:
        yield f"{path}securityContext.runAsUser must not be 0"
    if context.get("runAsNonRoot") is False:
        yield f"{path}securityContext.runAsNonRoot must be true"
    if context.get("privileged"):
        yield f"{path}securityContext.privileged must be false"
    if context.get("procMount", "Default") != "Default":
        yield f"{path}securityContext.procMount must be Default"
    profile = context.get("seccompProfile") or {}
    if profile and profile.get("type") not in _PROFILES:
        yield f"{path}securityContext.seccompProfile.type must be one of {_PROFILES}"
