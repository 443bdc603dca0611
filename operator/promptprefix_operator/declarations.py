"""Which text a resource declares, whether it can be warmed, and which versions it had."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from promptprefix.demand import let_go
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.fleet import (
    DEFAULT_RETENTION,
    Prefix,
    Refusal,
    Retention,
    Version,
    placement_id,
)
from promptprefix.history import History, rebuilt
from promptprefix.payload import Payload, PayloadError
from promptprefix.reasons import Reason
from promptprefix.resource import LintFinding, LintPolicy, PromptPrefixSpec
from promptprefix.selector import EVERY_POD, LabelSelector
from promptprefix.versions import MATCH_LAG
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.manifests import Resource
from promptprefix_operator.salts import Salts, salt_digest
from promptprefix_operator.sources import (
    Source,
    SourceText,
    pool_source_of,
    salt_source_of,
    sources_of,
    text_source_of,
)

_LINTS_KEPT = 1_024
_STALLING = (Reason.INVALID_CONTENT, Reason.INVALID_SALT, Reason.INVALID_POOL)
"""Reasons that last until somebody edits what is read."""

Matched = Callable[[str, datetime], Mapping[str, datetime]]
"""Returns the latest matches by version id of a resource, by its uid, as far as they are known."""

OnlyWarm = Mapping[tuple[str, str], Collection[str]]
"""Ids of versions by namespace and uid of their resource."""


class Linter(Protocol):
    """`promptprefix.lint.lint_payload`."""

    def __call__(
        self, payload: Payload, *, model: str = "", ignore: Collection[str] = ()
    ) -> list[LintFinding]:
        """Return the findings."""
        ...


@dataclass(frozen=True)
class Text:
    """A declared text: its version, what it is, and why it can't be warmed, if it can't."""

    version: Version | None
    payload: Payload | None
    refusal: Refusal | None
    salt: str = field(default="", repr=False)


_Readings = tuple[SourceText | None, SourceText | None, SourceText | None]
_Made = tuple[Resource, SourceText | None, SourceText | None, SourceText | None, History]
"""What a prefix is made from: the resource, the readings of what it refers to, its history."""


@dataclass
class _Known:
    """What is remembered of one resource. ``payloads`` are by version id.

    ``generation`` is the latest whose text is in force. ``text`` and ``made`` are what was read
    last, with what it was made from.
    """

    history: History
    generation: int
    payloads: dict[str, Payload] = field(default_factory=dict)
    text: tuple[tuple[str, Payload, str], Text] | None = field(default=None, repr=False)
    made: tuple[_Made, Prefix] | None = None


class Declarations:
    """Reads resources into prefixes and remembers the texts that pods may still hold.

    A resource of which nothing has changed gives the very same prefix as before.
    """

    def __init__(
        self,
        lint: Linter,
        salts: Salts,
        retention: Retention = DEFAULT_RETENTION,
        matched: Matched = lambda *_: {},
    ) -> None:
        self._lint = lint
        self._salts = salts
        self._retention = retention
        self._matched = matched
        self._findings: OrderedDict[tuple[str, str, frozenset[str]], tuple[LintFinding, ...]] = (
            OrderedDict()
        )
        self._known: dict[str, _Known] = {}
        self._payloads: dict[str, Payload] = {}
        self._read_at: datetime | None = None

    @property
    def wake_at(self) -> datetime | None:
        """When the next edit that waits comes into force."""
        pending = (known.history.pending for known in self._known.values())
        return min((each.due for each in pending if each is not None), default=None)

    def prefixes(self, cluster: Cluster, now: datetime) -> tuple[Prefix, ...]:
        """Return all resources as the planner reads them at ``now``."""
        if self._read_at is not None and now < self._read_at:
            for known in self._known.values():
                known.history = known.history.not_after(now)
        self._read_at = now
        return tuple(self._prefix(each, cluster, now) for each in cluster.resources.values())

    def payload(self, content_digest: str) -> Payload | None:
        """Return a declared or earlier text by its content digest."""
        return self._payloads.get(content_digest)

    def prune(
        self,
        resources: Mapping[str, Resource],
        placed: Collection[str],
        now: datetime,
        awaited: Collection[str] = (),
        needed: Callable[[], OnlyWarm] = dict,
    ) -> None:
        """Forget the texts of resources that are gone and versions that are no longer kept.

        ``placed`` holds the ids of the versions that some pod should hold. In the ``awaited``
        namespaces pods may hold others, so that only the oldest are forgotten. ``needed``, asked
        only where there are too many, returns those that are the only warm one of some pod.
        """
        gone = self._known.keys() - resources.keys()
        for uid in gone:
            del self._known[uid]
        patient = replace(self._retention, idle=self._retention.max_age)
        forgotten = bool(gone)
        for uid, known in self._known.items():
            if not known.history.earlier and len(known.payloads) <= 1:
                continue
            namespace = resources[uid].namespace
            retention = patient if namespace in awaited else self._retention
            must = partial(_needed, needed, (namespace, uid))
            known.history = known.history.prune(placed, now, retention, must)
            for id_ in known.payloads.keys() - {each.id for each in known.history.versions}:
                del known.payloads[id_]
                forgotten = True
        if forgotten:
            self._forget()

    def _forget(self) -> None:
        """Drop the texts and salts that are no version's any longer."""
        every = self._known.values()
        texts = (payload for known in every for payload in known.payloads.values())
        self._payloads = {payload.digest: payload for payload in texts}
        self._salts.retain({each.id for known in every for each in known.history.versions})

    def _prefix(self, resource: Resource, cluster: Cluster, now: datetime) -> Prefix:
        known = self._known.get(resource.uid)
        if known is None:
            known = self._known[resource.uid] = _remembered(resource, now)
        readings = _readings(resource, cluster)
        same = known.made is not None and all(
            map(operator.is_, known.made[0], (resource, *readings))
        )
        if not same or known.history.pending is not None:
            self._follow(resource, known, cluster, now)
        known.history = known.history.matched(self._matched(resource.uid, now))
        made = (resource, *readings, known.history)
        if known.made is not None and all(map(operator.is_, known.made[0], made)):
            return known.made[1]
        text = self._text(resource, known, cluster)
        prefix = self._made(resource, known, text, readings[2])
        known.made = (made, prefix)
        return prefix

    def _follow(self, resource: Resource, known: _Known, cluster: Cluster, now: datetime) -> None:
        """Take in the text that a resource declares at ``now``."""
        text = self._text(resource, known, cluster)
        if text.version is not None and text.payload is not None:
            self._declare(known, text.version, text.payload, text.salt, now)
        else:
            known.history = known.history.withdraw()
        if known.history.pending is None:
            known.generation = resource.generation

    def _declare(
        self, known: _Known, version: Version, payload: Payload, salt: str, now: datetime
    ) -> None:
        history = known.history.declare(version, now)
        if history is known.history:
            return
        known.history = history
        if history.current is not None and history.current.id == version.id:
            known.payloads[version.id] = self._payloads[payload.digest] = payload
        for each in history.versions:
            if salt and each.salt_digest == version.salt_digest:
                self._salts.keep(each.id, salt)

    def _made(
        self, resource: Resource, known: _Known, text: Text, pool: SourceText | None
    ) -> Prefix:
        spec, history, status = resource.spec, known.history, resource.status
        lint: tuple[LintFinding, ...] = ()
        refusal = text.refusal
        payload = text.payload
        if text.version is not None and history.current is not None:
            payload = known.payloads.get(history.current.id)  # while an edit waits: not the text's
        if payload is not None and spec is not None and spec.lint.policy is not LintPolicy.OFF:
            lint = self._linted(spec, payload)
            if refusal is None and lint and spec.lint.policy is LintPolicy.ENFORCE:
                refusal = _lint_failed(lint)
        readable = text.version is not None
        return Prefix(
            uid=resource.uid,
            namespace=resource.namespace,
            name=resource.name,
            generation=known.generation,
            spec=spec,
            version=history.current if readable else None,
            refusal=refusal,
            earlier=history.earlier if readable else history.versions,
            lint=lint,
            conditions=tuple(status.conditions) if status is not None else (),
            versions=tuple(status.versions) if status is not None else (),
            deleting=resource.deleting,
            created=resource.created,
            warm_now=resource.warm_now,
            unpin=resource.unpin,
            notes=resource.notes,
            pool_selector=_pool_selector(pool) if _of_pool(spec) else None,
        )

    def _text(self, resource: Resource, known: _Known, cluster: Cluster) -> Text:
        """Return the declared text; read again only when it, its salt or the model differs."""
        spec = resource.spec
        if spec is None:
            return Text(None, None, Refusal(Reason.INVALID_SPEC, resource.spec_error, True))
        payload, refusal = _payload(resource, spec, cluster)
        if payload is None:
            return Text(None, None, refusal)
        salt, refusal = _salt(resource, spec, cluster)
        refusal = refusal or _unselected(resource, spec, cluster)
        if refusal is not None:
            return Text(None, payload, refusal)
        key = (spec.model, payload, salt)
        if known.text is not None and known.text[0] == key:
            return known.text[1]
        text = _text_of(resource.uid, spec.model, payload, salt)
        known.text = (key, text)
        return text

    def _linted(self, spec: PromptPrefixSpec, payload: Payload) -> tuple[LintFinding, ...]:
        key = (payload.digest, spec.model, frozenset(spec.lint.ignore))
        if key not in self._findings:
            found = self._lint(payload, model=spec.model, ignore=spec.lint.ignore)
            self._findings[key] = tuple(found)
        self._findings.move_to_end(key)
        if len(self._findings) > _LINTS_KEPT:
            self._findings.popitem(last=False)
        return self._findings[key]


def _needed(needed: Callable[[], OnlyWarm], resource: tuple[str, str]) -> Collection[str]:
    return needed().get(resource, ())


def _remembered(resource: Resource, now: datetime) -> _Known:
    """Return what the status of a resource, seen for the first time, tells of its texts."""
    spec, status = resource.spec, resource.status
    if status is None:
        return _Known(History(), resource.generation)
    model = spec.model if spec is not None else ""
    lag = timedelta(0) if let_go(status.conditions) else MATCH_LAG
    return _Known(rebuilt(status.versions, resource.uid, model, now, lag), resource.generation)


def _readings(resource: Resource, cluster: Cluster) -> _Readings:
    """Return what was read of the objects that a resource refers to."""
    spec = resource.spec
    if spec is None:
        return None, None, None
    sources = sources_of(resource.namespace, spec)
    text, salt, pool = (cluster.text(source) if source is not None else None for source in sources)
    return text, salt, pool


def _payload(
    resource: Resource, spec: PromptPrefixSpec, cluster: Cluster
) -> tuple[Payload | None, Refusal | None]:
    """Return the text from where the spec says it stands."""
    if spec.content.inline is not None:
        return spec.content.inline.payload(), None
    found, refusal = _reading(text_source_of(resource.namespace, spec), cluster)
    return (found.payload if found is not None else None), refusal


def _salt(
    resource: Resource, spec: PromptPrefixSpec, cluster: Cluster
) -> tuple[str, Refusal | None]:
    """Return the cache salt; empty if the resource asks for none."""
    if spec.cacheSaltRef is None:
        return "", None
    found, refusal = _reading(salt_source_of(resource.namespace, spec), cluster)
    return (found.salt if found is not None else ""), refusal


def _of_pool(spec: PromptPrefixSpec | None) -> bool:
    return spec is not None and spec.pods.inferencePoolRef is not None


def _unselected(resource: Resource, spec: PromptPrefixSpec, cluster: Cluster) -> Refusal | None:
    """Return why it is not known which pods are selected, if it is not."""
    if not _of_pool(spec):
        return None
    return _reading(pool_source_of(resource.namespace, spec), cluster)[1]


def _pool_selector(pool: SourceText | None) -> LabelSelector:
    """Return the selector of an InferencePool.

    While there is none, whatever pod holds the text may keep it; nothing is warmed then.
    """
    return EVERY_POD if pool is None or pool.selector is None else pool.selector


def _reading(source: Source | None, cluster: Cluster) -> tuple[SourceText | None, Refusal | None]:
    """Return what a source gave, or why it gave nothing."""
    found = cluster.text(source) if source is not None else None
    if found is None:
        return None, Refusal(Reason.RECONCILING, f"{source} is being read.", stalled=False)
    if found.reason is not None:
        return None, Refusal(found.reason, f"{source}: {found.error}", found.reason in _STALLING)
    return found, None


def _text_of(uid: str, model: str, payload: Payload, salt: str) -> Text:
    """Return what a text with its cache salt is; an empty salt is none."""
    try:
        if payload.empty:
            raise PayloadError(
                "content", "declares neither a system text nor tools", Reason.INVALID_CONTENT
            )
        fingerprint = payload_fingerprint(model, payload)
    except PayloadError as error:
        told = f"spec.content, {error.unquoted}"
        refusal = Refusal(Reason(error.reason), told, stalled=True)
        return Text(None, payload, refusal)
    digest, salted = payload.digest, salt_digest(salt) if salt else ""
    id_ = placement_id(uid, model, digest, salted)
    version = Version(
        id_,
        model,
        fingerprint,
        digest,
        estimated_tokens=payload.estimated_tokens,
        salt_digest=salted,
    )
    return Text(version, payload, None, salt)


def _lint_failed(findings: Iterable[LintFinding]) -> Refusal:
    rules = sorted({finding.rule for finding in findings})
    message = (
        f"The linter found {', '.join(rules)}: see status.lint for the places and fixes, or set "
        "spec.lint.policy to Warn, or ignore rules with spec.lint.ignore."
    )
    return Refusal(Reason.LINT_FAILED, message, stalled=True)
