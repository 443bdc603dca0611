"""The router's view: which texts are declared, and which pods serve and hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence

from promptprefix.eligibility import Candidate
from promptprefix.fleet import Prefix, Size, Version
from promptprefix.wire import MAX_COUNT, EngineState, Placement, RouteEndpoint, RoutePrefix

_MAX_PORT = 65_535


def endpoint_of(each: Candidate, desired: Iterable[Placement]) -> RouteEndpoint | None:
    """Return a pod with a connected sidecar whose engine speaks plain HTTP, as the router does.

    The address is the API server's, never the sidecar's word: a pod can't send traffic elsewhere.
    """
    if each.engine is None or not each.pod.address or not _routable(each.engine):
        return None
    warm = {warm_digest(each, placement.id, placement.salted) for placement in desired} - {""}
    return RouteEndpoint(
        pod_uid=each.pod.uid,
        pod=each.pod.name,
        namespace=each.pod.namespace,
        address=each.pod.address,
        port=each.engine.port,
        models=each.engine.models,
        ready=each.pod.ready and not each.pod.leaving,
        warm=tuple(sorted(warm)),
        epoch=each.engine.epoch,
        cache_tokens=min(each.engine.blocks_total * each.engine.block_size, MAX_COUNT),
        blocks_port=each.engine.blocks_port if each.engine.blocks_port <= _MAX_PORT else 0,
    )


def same_warm(each: Candidate, one: Iterable[Placement], other: Iterable[Placement]) -> bool:
    """Whether a pod has the same warm of both."""
    warm = each.warm
    kept = {(placement.id, placement.salted) for placement in one if placement.id in warm}
    return kept == {(placement.id, placement.salted) for placement in other if placement.id in warm}


def _routable(engine: EngineState) -> bool:
    return not engine.tls and 0 < engine.port <= _MAX_PORT


def route_prefix_of(
    prefix: Prefix, version: Version, digests: Iterable[str], sizes: Iterable[Size] = ()
) -> RoutePrefix:
    """Return a version as routers match it, with what is warm of it where it should be held.

    Of the ``sizes`` that pods report, engines with smaller blocks have the larger. No request is
    rewritten to what is no longer declared.
    """
    declared = prefix.spec if version == prefix.version else None
    return RoutePrefix(
        id=version.id,
        name=prefix.name,
        tenant=prefix.namespace,
        model=version.model,
        fingerprint=version.fingerprint,
        content_digest=version.content_digest,
        tokens=max((tokens for _, tokens, _ in sizes), default=version.estimated_tokens),
        token_digests=tuple(sorted(set(digests))),
        normalize=declared is not None and declared.normalizeRequests,
        owner=(prefix.spec.tenant or "") if prefix.spec is not None else "",
    )


def routed_versions(prefix: Prefix, placed: Container[str]) -> Sequence[Version]:
    """Return the declared text, also while it is released, and earlier ones that are ``placed``.

    One whose model is not known can't be told from others: its salt may not be known either.
    """
    if prefix.spec is None or prefix.spec.suspend or prefix.deleting:
        return ()
    current = [prefix.version] if prefix.version is not None and prefix.refusal is None else []
    earlier = (version for version in prefix.earlier if version.id in placed and version.model)
    return [*current, *earlier]


def warm_digest(each: Candidate, placement: str, salted: bool) -> str:
    """Return under which digest routers know what a pod reports warm; empty if it doesn't."""
    digest = each.warm.get(placement, "")
    return told_apart(placement, digest) if salted and digest else digest


def told_apart(placement: str, digest: str) -> str:
    """Return under which digest a router knows tokens with a salt.

    They are in other blocks than the same tokens without a salt, or with another one.
    """
    return hashlib.sha256(f"{digest}\n{placement}".encode()).hexdigest()
