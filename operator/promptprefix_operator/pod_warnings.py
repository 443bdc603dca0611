"""What people must hear of pods: not injected though it was asked for, and Ready while cold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from promptprefix.annotations import INJECT
from promptprefix.fleet import Pod
from promptprefix.wire import SidecarState
from promptprefix_operator.events import Notice, pod_subject

NOT_INJECTED = "NotInjected"
READY_WITHOUT_PREFIXES = "ReadyWithoutPrefixes"

_NOT_INJECTED = (
    f"The label {INJECT}=true asks for the promptprefix sidecar, but the pod has none: when it was "
    "made, the webhook was not reachable or not enabled (the chart's value webhook.enabled). Once "
    "it is, make the pod anew, for example with kubectl rollout restart."
)
_READY_WITHOUT_PREFIXES = (
    "The pod became Ready by the sidecar's time limit, before all its prefixes were warm; they are "
    "warmed while it serves. See the status of its PromptPrefixes and the log of the container "
    "promptprefix-sidecar; READY_TIMEOUT_S is the limit."
)


def uninjected_by_namespace(pods: Mapping[str, Pod]) -> Mapping[str, int]:
    """Count the pods that asked for a sidecar and have none."""
    return Counter(each.namespace for each in pods.values() if each.uninjected and not each.leaving)


def notices(pods: Mapping[str, Pod], states: Mapping[str, SidecarState]) -> Iterator[Notice]:
    """Yield what there is to say now; ``states`` are the reports of connected sidecars by pod uid.

    A pod that is Ready while cold is told of once per epoch of its engine.
    """
    for pod in pods.values():
        if pod.leaving:
            continue
        subject = pod_subject(pod.namespace, pod.name, pod.uid)
        if pod.uninjected:
            yield Notice(subject, "Warning", NOT_INJECTED, _NOT_INJECTED, once="made")
        state = states.get(pod.uid)
        if state is not None and state.failed_open:
            epoch = state.engine.epoch or "unknown"
            message = _READY_WITHOUT_PREFIXES
            yield Notice(subject, "Warning", READY_WITHOUT_PREFIXES, message, once=epoch)
