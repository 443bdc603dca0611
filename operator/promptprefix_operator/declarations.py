"""Which text a resource declares, whether it can be warmed, and which versions it had."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.fleet import Prefix, Refusal, Version, placement_id
from promptprefix.payload import Payload, PayloadError
from promptprefix.reasons import Reason
from promptprefix.resource import LintFinding, LintPolicy, PromptPrefixSpec
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.manifests import Resource
from promptprefix_operator.sources import source_of

_LINTS_KEPT = 1_024
_EARLIER_KEPT = 3


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


class Declarations:
    """Reads resources into prefixes and remembers the texts that pods may still hold.

    Per resource it keeps the declared version and at most three earlier ones, and of those only
    the ones that the last plan placed somewhere.
    """

    def __init__(self, lint: Linter) -> None:
        self._lint = lint
        self._findings: OrderedDict[tuple[str, str, frozenset[str]], tuple[LintFinding, ...]] = (
            OrderedDict()
        )
        self._texts: dict[str, tuple[tuple[str, Payload], Text]] = {}
        self._versions: dict[str, dict[str, tuple[Version, Payload]]] = {}

    def prefixes(self, cluster: Cluster) -> tuple[Prefix, ...]:
        """Return all resources as the planner reads them."""
        return tuple(self._prefix(each, cluster) for each in cluster.resources.values())

    def payload(self, content_digest: str) -> Payload | None:
        """Return a declared or earlier text by its content digest."""
        for versions in self._versions.values():
            for version, payload in versions.values():
                if version.content_digest == content_digest:
                    return payload
        return None

    def prune(self, resources: Mapping[str, Resource], kept: Collection[str]) -> None:
        """Forget the texts of resources that are gone and versions that nobody should hold."""
        for uid in self._versions.keys() - resources.keys():
            del self._versions[uid]
            self._texts.pop(uid, None)
        for uid, versions in self._versions.items():
            current = self._texts[uid][1].version if uid in self._texts else None
            for id_ in list(versions):
                if id_ not in kept and (current is None or id_ != current.id):
                    del versions[id_]

    def _prefix(self, resource: Resource, cluster: Cluster) -> Prefix:
        spec = resource.spec
        conditions = tuple(resource.status.conditions) if resource.status is not None else ()
        text = self._text(resource, spec, cluster)
        lint: tuple[LintFinding, ...] = ()
        refusal = text.refusal
        if text.payload is not None and spec is not None and spec.lint.policy is not LintPolicy.OFF:
            lint = self._linted(spec, text.payload)
            if refusal is None and lint and spec.lint.policy is LintPolicy.ENFORCE:
                refusal = _lint_failed(lint)
        return Prefix(
            uid=resource.uid,
            namespace=resource.namespace,
            name=resource.name,
            generation=resource.generation,
            spec=spec,
            version=text.version,
            refusal=refusal,
            earlier=self._earlier(resource.uid, text),
            lint=lint,
            conditions=conditions,
            deleting=resource.deleting,
        )

    def _text(self, resource: Resource, spec: PromptPrefixSpec | None, cluster: Cluster) -> Text:
        """Return the declared text; parsed again only when it or the model differs."""
        if spec is None:
            return Text(None, None, Refusal(Reason.INVALID_SPEC, resource.spec_error, True))
        payload, refusal = _source(resource, spec, cluster)
        if payload is None:
            return Text(None, None, refusal)
        key = (spec.model, payload)
        known = self._texts.get(resource.uid)
        if known is not None and known[0] == key:
            return known[1]
        text = _text_of(resource.uid, spec.model, payload)
        self._texts[resource.uid] = (key, text)
        return text

    def _earlier(self, uid: str, text: Text) -> tuple[Version, ...]:
        """Note the declared version as the newest; return those before it, newest first."""
        versions = self._versions.setdefault(uid, {})
        current = text.version
        if (
            current is not None
            and text.payload is not None
            and next(iter(versions), "") != (current.id)
        ):
            versions.pop(current.id, None)
            self._versions[uid] = versions = {current.id: (current, text.payload), **versions}
            for id_ in list(versions)[1 + _EARLIER_KEPT :]:
                del versions[id_]
        return tuple(
            version for id_, (version, _) in versions.items() if not current or id_ != current.id
        )

    def _linted(self, spec: PromptPrefixSpec, payload: Payload) -> tuple[LintFinding, ...]:
        key = (payload.digest, spec.model, frozenset(spec.lint.ignore))
        if key not in self._findings:
            found = self._lint(payload, model=spec.model, ignore=spec.lint.ignore)
            self._findings[key] = tuple(found)
        self._findings.move_to_end(key)
        if len(self._findings) > _LINTS_KEPT:
            self._findings.popitem(last=False)
        return self._findings[key]


def _source(
    resource: Resource, spec: PromptPrefixSpec, cluster: Cluster
) -> tuple[Payload | None, Refusal | None]:
    """Return the text from where the spec says it stands."""
    if spec.content.inline is not None:
        return spec.content.inline.payload(), None
    source = source_of(resource.namespace, spec.content)
    found = cluster.text(source) if source is not None else None
    if found is None:
        return None, Refusal(Reason.RECONCILING, f"{source} is being read.", stalled=False)
    if found.reason is not None:
        stalled = found.reason is Reason.INVALID_CONTENT
        return None, Refusal(found.reason, f"{source}: {found.error}", stalled)
    return found.payload, None


def _text_of(uid: str, model: str, payload: Payload) -> Text:
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
    digest = payload.digest
    version = Version(placement_id(uid, model, digest), model, fingerprint, digest)
    return Text(version, payload, None)


def _lint_failed(findings: Iterable[LintFinding]) -> Refusal:
    rules = sorted({finding.rule for finding in findings})
    message = (
        f"The linter found {', '.join(rules)}: see status.lint for the places and fixes, or set "
        "spec.lint.policy to Warn, or ignore rules with spec.lint.ignore."
    )
    return Refusal(Reason.LINT_FAILED, message, stalled=True)
