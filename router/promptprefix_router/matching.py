"""Which declared prefix a request stands for: by header, else by exact fingerprint.

Every API that renders a chat has its own way of saying the same; the fingerprint is one.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from promptprefix.canonical import CanonicalError
from promptprefix.request import UndeclaredError
from promptprefix.shapes import SHAPES
from promptprefix.wire import RoutePrefix
from promptprefix_router.request_head import (
    NO_SALT,
    DeclaringHead,
    DeclaringReader,
    MalformedError,
    check_unambiguous,
    guess_model,
    read_head,
)
from promptprefix_router.routes import Routes

NO_FINGERPRINT = ""

_READERS = {path: DeclaringReader(shape) for path, shape in SHAPES.items()}


class MatchKind(StrEnum):
    """How a request was matched; the same words stand in metrics and in the response header."""

    HEADER = "header"
    FINGERPRINT = "fingerprint"
    UNDECLARED = "undeclared"
    PARTIAL = "partial"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Question:
    """What a door asks: a request of a client, its body whole or only its first part.

    ``subset`` are the addresses (``ip:port``) that a gateway allows; None allows all.
    """

    path: str
    body: bytes
    partial: bool = False
    prefix_name: str | None = None
    subset: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A request's model, and the token digests and version ids of the prefix that it stands for.

    A name in a header says nothing of the version: it counts for the one in force. ``prefixes`` are
    those whose declared text the request means, the newest of each first.
    """

    kind: MatchKind
    model: str | None = None
    digests: frozenset[str] = frozenset()
    ids: tuple[str, ...] = ()
    prefixes: tuple[RoutePrefix, ...] = field(default=(), repr=False, compare=False)


class FingerprintMemo:
    """Fingerprints by the raw bytes that decide them; the least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, str] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def fingerprint(self, head: DeclaringHead) -> str:
        """Return the fingerprint of ``head``, or `NO_FINGERPRINT` if it can't have one."""
        key = head.key
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
            self.hits += 1
            return known
        self.misses += 1
        try:
            value = head.fingerprint()
        except (CanonicalError, UndeclaredError):
            value = NO_FINGERPRINT
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return value


class Matcher:
    """Matches requests against a route table. Never fails: what it can't read is undeclared."""

    def __init__(self, memo: FingerprintMemo) -> None:
        self._memo = memo

    def match(self, question: Question, routes: Routes) -> Match:
        """Return what ``question`` stands for."""
        if question.partial:
            return self._match_partial(question, routes)
        reader = _READERS.get(question.path)
        if reader is None:
            return self._match_other(question, routes)
        try:
            head = reader.read(question.body)
        except MalformedError:
            return Match(MatchKind.MALFORMED)
        named = _by_name(question, routes, head.model, head.salt)
        return named or self._by_fingerprint(question, head, routes)

    def _by_fingerprint(self, question: Question, head: DeclaringHead, routes: Routes) -> Match:
        undeclared = Match(MatchKind.UNDECLARED, head.model)
        if head.model not in routes.declared_models:
            return undeclared
        if head.ambiguous:
            try:
                check_unambiguous(question.body)
            except CanonicalError:
                return undeclared
        prefixes = _salted_alike(routes.with_fingerprint(self._memo.fingerprint(head)), head.salt)
        if not prefixes:
            return undeclared
        ids = tuple(prefix.id for prefix in prefixes)
        return Match(MatchKind.FINGERPRINT, head.model, _digests(prefixes), ids, prefixes)

    def _match_other(self, question: Question, routes: Routes) -> Match:
        try:
            head = read_head(question.body)
        except MalformedError:
            return Match(MatchKind.MALFORMED)
        named = _by_name(question, routes, head.model, head.salt)
        return named or Match(MatchKind.UNDECLARED, head.model)

    def _match_partial(self, question: Question, routes: Routes) -> Match:
        guess = guess_model(question.body)
        model = guess if guess is not None and routes.serves(guess) else None
        named = _by_name(question, routes, model, NO_SALT)
        return named or Match(MatchKind.PARTIAL, model)


def _by_name(
    question: Question, routes: Routes, model: str | None, salt: str | None
) -> Match | None:
    if question.prefix_name is None:
        return None
    prefixes = _salted_alike(routes.named(question.prefix_name, model), salt)
    if not prefixes:
        return None
    newest = prefixes[0]
    return Match(MatchKind.HEADER, newest.model, _digests(prefixes), (newest.id,))


def _salted_alike(prefixes: tuple[RoutePrefix, ...], salt: str | None) -> tuple[RoutePrefix, ...]:
    """Return the prefixes whose blocks a request with ``salt`` can reuse.

    Of a body that was cut the salt isn't known, so it matches no salted prefix.
    """
    if salt is None:
        return ()
    given = salt.encode()
    return tuple(each for each in prefixes if hmac.compare_digest(each.salt.encode(), given))


def _digests(prefixes: Iterable[RoutePrefix]) -> frozenset[str]:
    return frozenset(digest for prefix in prefixes for digest in prefix.token_digests)
