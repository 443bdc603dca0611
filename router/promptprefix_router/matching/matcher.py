"""Which declared prefix a request stands for: by header, by fingerprint, by its longest head.

Every API that renders a chat has its own way of saying the same; the fingerprint is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import system_bytes
from promptprefix.shapes import SHAPES
from promptprefix.wire import RoutePrefix
from promptprefix_router.control.routes import NOBODY, Routes
from promptprefix_router.matching.heads import HeadIndex
from promptprefix_router.matching.memo import NOT_CANONICAL, FingerprintMemo
from promptprefix_router.matching.openings import Known
from promptprefix_router.matching.request_head import (
    DeclaringHead,
    DeclaringReader,
    MalformedError,
    RequestHead,
    check_unambiguous,
    guess_model,
    read_head,
)
from promptprefix_router.traces import Traces

OTHER_MODEL = "other-model"
OTHER_API = "other-api"
OTHER_TEXT = "other-text"
OTHER_SALT = "other-salt"
OTHER_TENANT = "other-tenant"
"""Why a request is undeclared that says well what it declares; what can't has a `Cause`."""

MATCHES = 8192
"""Matches by fingerprint and tenant that are kept of a route table."""

_READERS = {path: DeclaringReader(shape) for path, shape in SHAPES.items()}


class MatchKind(StrEnum):
    """How a request was matched; the same words stand in metrics and in the response header."""

    HEADER = "header"
    FINGERPRINT = "fingerprint"
    HEAD = "head"
    """Its system text begins with a declared one; all else is equal."""
    UNDECLARED = "undeclared"
    PARTIAL = "partial"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Question:
    """What a door asks: a request of a client, its body whole or only its first part.

    ``subset`` are the addresses (``ip:port``) that a gateway allows; None allows all.
    ``sheddable``: it may be refused under overload.
    """

    path: str
    body: bytes
    partial: bool = False
    prefix_name: str | None = None
    tenant: str = ""
    subset: frozenset[str] | None = None
    sheddable: bool = False
    known: Known[DeclaringHead] | None = field(init=False, repr=False, compare=False)
    """What is known of the body because one like it was read before."""
    traces: Traces = field(init=False, repr=False, compare=False)
    """Those of the body."""

    def __post_init__(self) -> None:
        """Look at the body once: several ask, and it takes a while."""
        reader = None if self.partial else _READERS.get(self.path)
        known = None if reader is None else reader.known(self.body)
        traces = Traces.of(self.body) if known is None else known.traces
        object.__setattr__(self, "known", known)
        object.__setattr__(self, "traces", traces)


@dataclass(frozen=True, slots=True)
class Match:
    """A request's model, and the token digests and version ids of the prefix that it stands for.

    A name in a header says nothing of the version: it counts for the one in force. ``prefixes`` are
    those whose declared text the request means, the newest of each first. ``tokens`` are those of
    the declared head, cached where it is warm. ``cause`` is a fixed word that says why a request
    that could have stood for a prefix stands for none. ``salt`` is the cache salt that the engine
    is to read, whatever the client wrote; empty for none.
    """

    kind: MatchKind
    model: str | None = None
    digests: frozenset[str] = frozenset()
    ids: tuple[str, ...] = ()
    prefixes: tuple[RoutePrefix, ...] = field(default=(), repr=False, compare=False)
    tokens: int = 0
    cause: str = ""
    salt: str = field(default="", repr=False)


class Matcher:
    """Matches requests against a route table. Never fails: what it can't read is undeclared."""

    def __init__(self, memo: FingerprintMemo) -> None:
        self._memo = memo
        self._heads = HeadIndex()
        self._learn(Routes())

    def _learn(self, routes: Routes) -> None:
        self._learned = routes
        self._by_fingerprint = lru_cache(MATCHES)(partial(_by_fingerprint, routes))

    def use(self, heads: HeadIndex, largest_frame: float = math.inf) -> None:
        """Know these declared texts from now on, none of which has a larger frame."""
        self._heads = heads
        self._memo.bound(largest_frame)

    def match(self, question: Question, routes: Routes) -> Match:
        """Return what ``question`` stands for."""
        if routes is not self._learned:
            self._learn(routes)
        found = self._found(question, routes)
        return found if found.ids else replace(found, salt=routes.salt_of(question.tenant))

    def _found(self, question: Question, routes: Routes) -> Match:
        if question.partial:
            return self._match_partial(question, routes)
        reader = _READERS.get(question.path)
        if reader is None:
            return self._match_other(question, routes)
        known = question.known
        try:
            head = known.opening.head if known else reader.read(question.body, question.traces)
        except MalformedError:
            return Match(MatchKind.MALFORMED)
        named = _by_name(question, routes, head.model)
        if named is not None:
            return named
        match = self._by_text(question, head, routes)
        if match.kind is MatchKind.FINGERPRINT and known is None:
            reader.remember(question.body, head)
        return match

    def _by_text(self, question: Question, head: DeclaringHead, routes: Routes) -> Match:
        if head.model not in routes.declared_models:
            return _undeclared(head, OTHER_MODEL)
        if head.ambiguous:
            try:
                check_unambiguous(question.body)
            except CanonicalError:
                return _undeclared(head, NOT_CANONICAL)
        reading, system = self._memo.read(head)
        if reading.cause:
            return _undeclared(head, reading.cause)
        match = self._by_fingerprint(reading.fingerprint, routes.owner(question.tenant))
        if match is not None:
            return match
        alike = routes.with_fingerprint(reading.fingerprint, question.tenant)
        if not alike and self._heads.knows(reading.frame):
            text = system_bytes(head.system()) if system is None else system
            alike = self._begun(reading.frame, text, question.tenant, routes)
            if alike and routes.reusable(alike, question.tenant):
                return _matched(MatchKind.HEAD, alike)
        if alike:
            return _undeclared(head, OTHER_SALT)
        other = routes.declares(reading.fingerprint)
        return _undeclared(head, OTHER_TENANT if other else OTHER_TEXT)

    def _begun(
        self, frame: bytes, text: bytes, tenant: str, routes: Routes
    ) -> tuple[RoutePrefix, ...]:
        """Return the prefixes with the longest declared text of the tenant, else of nobody."""
        for owner in dict.fromkeys((tenant, NOBODY)):
            begun = self._heads.longest(frame, owner, text)
            if begun is not None:
                return routes.with_fingerprint(begun, owner)
        return ()

    def _match_other(self, question: Question, routes: Routes) -> Match:
        try:
            head = read_head(question.body)
        except MalformedError:
            return Match(MatchKind.MALFORMED)
        return _by_name(question, routes, head.model) or _undeclared(head, OTHER_API)

    def _match_partial(self, question: Question, routes: Routes) -> Match:
        guess = guess_model(question.body)
        model = guess if guess is not None and routes.serves(guess) else None
        named = _by_name(question, routes, model)
        # Of a body that was cut none can get a salt.
        return named if named and not named.salt else Match(MatchKind.PARTIAL, model)


def _by_name(question: Question, routes: Routes, model: str | None) -> Match | None:
    if question.prefix_name is None:
        return None
    prefixes = routes.named(question.prefix_name, model, question.tenant)
    if not prefixes or not routes.reusable(prefixes, question.tenant):
        return None
    return replace(_matched(MatchKind.HEADER, prefixes), ids=(prefixes[0].id,))


def _by_fingerprint(routes: Routes, fingerprint: str, tenant: str) -> Match | None:
    alike = routes.with_fingerprint(fingerprint, tenant)
    if not alike or not routes.reusable(alike, tenant):
        return None
    return _matched(MatchKind.FINGERPRINT, alike, alike)


def _matched(
    kind: MatchKind, prefixes: tuple[RoutePrefix, ...], meant: tuple[RoutePrefix, ...] = ()
) -> Match:
    return Match(
        kind,
        prefixes[0].model,
        frozenset([digest for prefix in prefixes for digest in prefix.token_digests]),
        tuple([prefix.id for prefix in prefixes]),
        meant,
        max([prefix.tokens for prefix in prefixes]),
        salt=prefixes[0].salt,
    )


def _undeclared(head: RequestHead, cause: str) -> Match:
    return Match(MatchKind.UNDECLARED, head.model, cause=cause)
