"""Resources of our containers that a pod's quality of service and its quota can bear."""

from __future__ import annotations

from typing import Final

from promptprefix_operator.injection.pod import Container, JsonObject, Pod

CPU_LIMIT: Final = "1"
_COUNTED: Final = ("cpu", "memory")


def fitting_resources(pod: Pod, wanted: JsonObject) -> JsonObject:
    """Return the resources of each of our containers, ``wanted`` where the pod leaves the choice.

    A Guaranteed pod stays one: requests and limits are made equal. Where all containers have a CPU
    limit ours get one too, because a quota of limits refuses pods without. Where the pod as a whole
    has resources, ours take part in them: more requests could exceed the pod's, which is refused.
    """
    if pod.spec.resources:
        return {}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    requests, limits = wanted.get("requests") or {}, wanted.get("limits") or {}
    if not all(_is_guaranteed(each) for each in containers):
        if "cpu" in limits or not all("cpu" in _limits(each) for each in containers):
            return wanted
        return {**wanted, "limits": {"cpu": CPU_LIMIT, **limits}}
    equal = {
        name: limits.get(name, requests.get(name))
        for name in dict.fromkeys((*_COUNTED, *requests, *limits))
    }
    if any(equal[name] is None for name in _COUNTED):
        return wanted
    return {"requests": dict(equal), "limits": dict(equal)}


def _is_guaranteed(container: Container) -> bool:
    limits = _limits(container)
    requests = container.resources.get("requests") or {}
    return all(
        name in limits and requests.get(name, limits[name]) == limits[name] for name in _COUNTED
    )


def _limits(container: Container) -> JsonObject:
    limits = container.resources.get("limits")
    return limits if isinstance(limits, dict) else {}
