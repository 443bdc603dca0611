"""The part that a pod has where prefill and decode are apart.

A label of our own is taken at its word. Others are set on whole fleets, also on engines that do
both (llm-d labels all its engines ``decode`` where there are no prefill pods), so they count only
beside a pod that prefills the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from promptprefix.annotations import DECODE_ROLE, ROLE_LABELS
from promptprefix.fleet import Pod

_OWN = ROLE_LABELS[0]
_PREFILL_ROLE = "prefill"
_MODEL_LABEL = "llm-d.ai/model"


def role_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the label that says the pod's part, and the part; two empty words if none does."""
    return next(((key, labels[key]) for key in ROLE_LABELS if key in labels), ("", ""))


def decodes(labels: Mapping[str, str]) -> bool:
    """Return whether a pod is said to get KV from prefill pods."""
    return role_of(labels)[1] == DECODE_ROLE


def apart(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods; those that only a foreign label says to decode do so beside a prefill pod.

    Of the others the same objects are returned.
    """
    pods = tuple(pods)
    prefilled = {
        _fleet(pod)
        for pod in pods
        if not pod.leaving and _PREFILL_ROLE in role_of(pod.labels)[1].split("-")
    }
    return tuple(
        replace(pod, decodes=False)
        if pod.decodes and role_of(pod.labels)[0] != _OWN and _fleet(pod) not in prefilled
        else pod
        for pod in pods
    )


def _fleet(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.labels.get(_MODEL_LABEL, "")
