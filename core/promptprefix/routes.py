"""The router's view: which texts are declared, and which pods serve and hold them."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from promptprefix.eligibility import Candidate
from promptprefix.fleet import Prefix, Version
from promptprefix.wire import EngineState, Phase, Placement, RouteEndpoint, RoutePrefix

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_PORT = 65_535


def endpoints_of(
    candidates: Mapping[str, Sequence[Candidate]],
    desired: Mapping[str, tuple[Placement, ...]],
) -> tuple[RouteEndpoint, ...]:
    """Return every pod with a connected sidecar whose engine speaks plain HTTP, as the router does.

    The address is the API server's, never the sidecar's word: a pod can't send traffic elsewhere.
    """
    return tuple(
        RouteEndpoint(
            pod_uid=each.pod.uid,
            pod=each.pod.name,
            namespace=each.pod.namespace,
            address=each.pod.address,
            port=each.engine.port,
            models=each.engine.models,
            ready=each.pod.ready and not each.pod.leaving,
            warm=tuple(sorted(set(_warm(each, desired).values()))),
        )
        for group in candidates.values()
        for each in group
        if each.engine is not None and each.pod.address and _routable(each.engine)
    )


def _routable(engine: EngineState) -> bool:
    return not engine.tls and 0 < engine.port <= _MAX_PORT


def route_prefixes_of(
    prefixes: Sequence[Prefix],
    candidates: Mapping[str, Sequence[Candidate]],
    desired: Mapping[str, tuple[Placement, ...]],
) -> tuple[RoutePrefix, ...]:
    """Return the declared text of every resource, followed by earlier ones that pods still hold."""
    digests: dict[str, set[str]] = defaultdict(set)
    for group in candidates.values():
        for each in group:
            for placement, digest in _warm(each, desired).items():
                digests[placement].add(digest)
    kept = {placement.id for each in desired.values() for placement in each}
    return tuple(
        RoutePrefix(
            id=version.id,
            name=prefix.name,
            tenant=prefix.namespace,
            model=version.model,
            fingerprint=version.fingerprint,
            token_digests=tuple(sorted(digests.get(version.id, ()))),
        )
        for prefix in prefixes
        for version in _routed(prefix, kept)
    )


def _routed(prefix: Prefix, kept: set[str]) -> list[Version]:
    if prefix.spec is None or prefix.spec.suspend or prefix.deleting:
        return []
    current = [prefix.version] if prefix.version is not None and prefix.refusal is None else []
    return current + [version for version in prefix.earlier if version.id in kept]


def _told_apart(placement: Placement, digest: str) -> str:
    """Return under which digest a router knows the tokens.

    Those with a salt are in other blocks than the same tokens without, or with another one.
    """
    if not placement.salted:
        return digest
    return hashlib.sha256(f"{digest}\n{placement.id}".encode()).hexdigest()


def _warm(each: Candidate, desired: Mapping[str, tuple[Placement, ...]]) -> dict[str, str]:
    """Return the token digests by placement that the pod should hold and reports warm.

    An engine that is down holds nothing, whatever was reported before.
    """
    if each.engine is None or not each.engine.healthy:
        return {}
    return {
        placement.id: _told_apart(placement, state.token_digest)
        for placement in desired.get(each.pod.uid, ())
        if (state := each.reported.get(placement.id)) is not None
        and state.phase is Phase.WARM
        and _DIGEST.fullmatch(state.token_digest)
    }
