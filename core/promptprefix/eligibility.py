"""Which pods can hold a prefix, and what stands in the way of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from promptprefix.accounts import Account, Accounts
from promptprefix.conditions import Shortfall
from promptprefix.fleet import Pod, Sidecar, serves
from promptprefix.reasons import Reason
from promptprefix.resource import Problem, PromptPrefixSpec
from promptprefix.wire import EngineState, PlacementState

_MODELS_NAMED = 5


class Standing(Enum):
    """Whether a pod can hold a prefix of a model, best first."""

    ELIGIBLE = "eligible"
    ASLEEP = "engine asleep"
    WRONG_MODEL = "does not serve the model"
    UNHEALTHY = "engine not healthy"
    UNCONNECTED = "sidecar not connected"
    DECODES = "gets KV from prefill pods"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A pod and what its sidecar says.

    ``accounts`` are by the uid of the resource; those are all of which it says anything, or was
    ``told`` anything. What it was told to release is ``resting``. ``silent``: see `Sidecar`.
    """

    pod: Pod
    engine: EngineState | None = None
    reported: Mapping[str, PlacementState] = field(default_factory=dict)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    silent: bool = False

    @property
    def connected(self) -> bool:
        """Whether its sidecar is connected."""
        return self.engine is not None

    @property
    def serving(self) -> bool:
        """Whether its engine `serves`."""
        return serves(self.engine)

    @cached_property
    def warm(self) -> Mapping[str, str]:
        """The token digests of what is warm, by placement.

        An engine that is down holds nothing, whatever was reported before.
        """
        if not self.serving:
            return {}
        return {
            each.id: each.digest
            for account in self.accounts.values()
            for each in account.readings
            if each.warm and each.digest
        }

    def standing(self, model: str) -> Standing:
        """Return whether the pod can hold a prefix of ``model``."""
        if self.pod.decodes:
            return Standing.DECODES
        if self.engine is None:
            return Standing.UNCONNECTED
        if self.engine.asleep:
            return Standing.ASLEEP
        if not self.engine.healthy:
            return Standing.UNHEALTHY
        return Standing.ELIGIBLE if model in self.models else Standing.WRONG_MODEL


def candidate(pod: Pod, sidecar: Sidecar | None, accounts: Accounts) -> Candidate:
    """Join a pod with its sidecar's report, read together with those of other pods."""
    if sidecar is None:
        return Candidate(pod)
    engine = sidecar.state.engine
    reported = {state.id: state for state in sidecar.state.placements}
    return Candidate(
        pod=pod,
        engine=engine,
        reported=reported,
        accounts=accounts.of(sidecar, reported),
        told=sidecar.told,
        resting=sidecar.resting,
        models=frozenset(engine.models),
        silent=sidecar.silent,
    )


def obstacle(each: Candidate, model: str) -> Problem | None:
    """Return what keeps a selected pod from holding the prefix; None if nothing does."""
    match each.standing(model):
        case Standing.ELIGIBLE:
            return None
        case Standing.DECODES:
            reason = Reason.DECODE_POD
            message = "It gets its KV from prefill pods: prefixes are held on those."
        case Standing.UNCONNECTED:
            reason = Reason.SIDECAR_NOT_CONNECTED
            message = "No sidecar of this pod is connected: see the log of its sidecar container."
        case Standing.ASLEEP:
            reason = Reason.ENGINE_ASLEEP
            message = "The engine was put to sleep: the prefix is warmed when it is woken up."
        case Standing.UNHEALTHY:
            reason = Reason.ENGINE_NOT_HEALTHY
            message = "The engine does not answer its health check (yet): see its log."
        case Standing.WRONG_MODEL:
            reason = Reason.MODEL_NOT_SERVED
            message = f"The engine serves {_served([each])}, not {_short(model)}."
    return Problem(pod=each.pod.name, reason=reason, message=message)


def shortfall(
    spec: PromptPrefixSpec, namespace: str, selected: Sequence[Candidate]
) -> Shortfall | None:
    """Return why too few of the ``selected`` pods are eligible."""
    if not selected:
        return Shortfall(
            Reason.NO_MATCHING_PODS,
            f"No pod in namespace {namespace} matches {_selection(spec)}: compare it with "
            "the labels of the vLLM pods.",
        )
    by_standing: dict[Standing, list[Candidate]] = {standing: [] for standing in Standing}
    for each in selected:
        by_standing[each.standing(spec.model)].append(each)
    eligible = len(by_standing[Standing.ELIGIBLE])
    if not eligible:
        return _nobody(spec, selected, by_standing)
    if eligible >= spec.pods_wanted(eligible):
        return None
    return Shortfall(
        Reason.INSUFFICIENT_PODS,
        f"{spec.replicas} replicas are wanted, but only {_pods(eligible)} of "
        f"{len(selected)} selected can hold the prefix: add pods or lower spec.replicas.",
    )


def _nobody(
    spec: PromptPrefixSpec,
    selected: Sequence[Candidate],
    by_standing: Mapping[Standing, Sequence[Candidate]],
) -> Shortfall:
    """Return why no pod is eligible: the standing that is nearest to it."""
    if asleep := by_standing[Standing.ASLEEP]:
        return Shortfall(
            Reason.ENGINE_ASLEEP,
            f"The engines of {_pods(len(asleep))} are asleep: the prefix is warmed when one is "
            "woken up.",
        )
    if wrong := by_standing[Standing.WRONG_MODEL]:
        return Shortfall(
            Reason.MODEL_NOT_SERVED,
            f"None of {_pods(len(wrong))} serves the model {_short(spec.model)}; served: "
            f"{_served(wrong)}. Set spec.model to a served name.",
        )
    if unhealthy := by_standing[Standing.UNHEALTHY]:
        return Shortfall(
            Reason.ENGINE_NOT_HEALTHY,
            f"No engine is healthy on the {_pods(len(unhealthy))} with a connected sidecar: "
            "wait until vLLM has started, or see its log.",
        )
    if len(by_standing[Standing.DECODES]) == len(selected):
        return Shortfall(
            Reason.DECODE_POD,
            f"All of {_pods(len(selected))} selected get their KV from prefill pods: let "
            f"{_selection(spec)} select the prefill pods.",
        )
    return Shortfall(
        Reason.SIDECAR_NOT_CONNECTED,
        f"No sidecar is connected from {_pods(len(selected))} selected: add the promptprefix "
        "sidecar to the pod template, or see its log.",
    )


def _selection(spec: PromptPrefixSpec) -> str:
    pool = spec.pods.inferencePoolRef
    if pool is None:
        return "spec.pods.selector"
    return f"the selector of InferencePool {pool.name} (spec.pods.inferencePoolRef)"


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


def _served(candidates: Sequence[Candidate]) -> str:
    models = sorted({m for each in candidates if each.engine for m in each.engine.models})
    named = ", ".join(_short(model) for model in models[:_MODELS_NAMED])
    return (named + (", …" if len(models) > _MODELS_NAMED else "")) or "no model"
