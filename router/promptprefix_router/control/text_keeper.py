"""Reads the declared texts of the route table from the operator, and keeps them in memory.

A text that is not there, whatever the reason, costs only what it is for: requests that add to it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import httpx
import structlog
from pydantic import ValidationError

from promptprefix.payload import Payload
from promptprefix.wire import CONTENT_PATH, STANDBY_STATUS, RoutePrefix
from promptprefix_router.control.control_link import (
    AnswerError,
    ControlAccess,
    ControlLink,
    StandbyError,
)
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.texts import KnownPrefix, Text, Texts

AT_ONCE = 4
"""Texts that are asked for at a time."""
STEP = 64
"""After so many arrivals they are put in force, though more are to come."""
PAUSE_FACTOR = 20
"""What arrives is put in force after a pause that is so many times as long as that took before."""
RETRY_S = 60.0
"""Time after which a text is asked for again that was refused or was not what it should be."""
MAX_TEXT_BYTES = 8 * 1024 * 1024
"""Bytes of one answer; the text of a Kubernetes object is smaller, escapes included."""

_REFUSALS = (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)


class TextMeter(Protocol):
    """Counts what becomes of the texts."""

    def fetched(self, result: str) -> None:
        """Count one answer or failure; ``result`` is a fixed word."""

    def keeping(self, texts: int, missing: int, size: int) -> None:
        """Take note of how many texts are kept and are missing, and of the bytes of those kept."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A text by the models whose prefixes have it; ``size`` is in bytes."""

    payload: Payload = field(repr=False)
    size: int
    texts: dict[str, Text | None] = field(default_factory=dict, repr=False)

    def text(self, model: str) -> Text | None:
        """Return the text as requests for ``model`` mean it, None if they can't."""
        if model not in self.texts:
            try:
                self.texts[model] = Text.of(model, self.payload)
            except ValueError:
                self.texts[model] = None
        return self.texts[model]


class TextKeeper:
    """Keeps the texts of the table in force, as many as ``limit`` bytes hold.

    ``use`` takes the texts that are known, each time that they are others.
    """

    def __init__(
        self,
        access: ControlAccess,
        limit: int,
        use: Callable[[Texts], None],
        meter: TextMeter,
        clock: Callable[[], float],
    ) -> None:
        self._access = access
        self._limit = limit
        self._use = use
        self._meter = meter
        self._clock = clock
        self._wanted: dict[str, list[RoutePrefix]] = {}
        self._told: frozenset[tuple[str, ...]] = frozenset()
        self._kept: dict[str, _Kept] = {}
        self._size = 0
        self._over: dict[str, int] = {}
        self._refused: dict[str, float] = {}
        self._arrived = 0
        self._texts = Texts(whole=True)
        self._named = True
        self._stale = False
        self._due = -math.inf
        self._news = asyncio.Event()
        self._link = ControlLink(
            access,
            meter.fetched,
            structlog.get_logger("texts"),
            away="declared texts can't be read, known ones stay",
            back="operator tells texts again",
        )

    def want(self, routes: Routes) -> None:
        """Keep the texts of ``routes`` from now on, and drop the others."""
        declared = list(routes.versions)
        versions = [each for each in declared if each.content_digest] if self._limit else []
        named = len(versions) == len(declared)
        told = frozenset((e.content_digest, e.model, e.fingerprint, e.owner) for e in versions)
        wanted: dict[str, list[RoutePrefix]] = {}
        for each in sorted(versions, key=lambda each: -each.tokens):
            wanted.setdefault(each.content_digest, []).append(each)
        self._wanted = wanted
        if (told, named) == (self._told, self._named):
            return
        self._told, self._named = told, named
        for digest in self._kept.keys() - wanted.keys():
            self._size -= self._kept.pop(digest).size
        for digest, kept in self._kept.items():
            for model in kept.texts.keys() - {each.model for each in wanted[digest]}:
                del kept.texts[model]
        self._refused = {d: at for d, at in self._refused.items() if d in wanted}
        self._over = {d: size for d, size in self._over.items() if d in wanted}
        self._know_partly()
        self._stale = True
        self._put_in_force_if_due()
        self._news.set()

    def payload(self, digest: str) -> Payload | None:
        """Return the text with this content digest, if it is kept."""
        kept = self._kept.get(digest)
        return None if kept is None else kept.payload

    async def run(self) -> None:
        """Read texts for ever."""
        await self._link.run(self.exchange)

    async def exchange(self, client: httpx.AsyncClient) -> None:
        """Read some texts, or wait until there are some to read.

        Raises `StandbyError`, `AnswerError`, `httpx.HTTPError` or `OSError`.
        """
        missing = self._missing()[:AT_ONCE]
        if not missing:
            self._put_in_force_if_due()
            await self._wait()
            return
        headers = self._access.headers
        fetches = (self._fetch(client, headers, digest) for digest in missing)
        results = await asyncio.gather(*fetches, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if self._arrived and (failures or self._arrived >= STEP or not self._missing()):
            self._put_in_force_if_due()
        if failures:
            raise failures[0]

    async def _wait(self) -> None:
        self._news.clear()
        until_due = self._due - self._clock() if self._stale else RETRY_S
        try:
            async with asyncio.timeout(
                min(RETRY_S, max(0.0, until_due)) if self._refused or self._stale else None
            ):
                await self._news.wait()
        except TimeoutError:
            pass

    def _missing(self) -> list[str]:
        """Return what to ask for, the largest first, as far as the tokens tell."""
        now = self._clock()
        return [
            digest
            for digest in self._wanted
            if digest not in self._kept
            and self._size + self._over.get(digest, 0) <= self._limit
            and now - self._refused.get(digest, -math.inf) >= RETRY_S
        ]

    async def _fetch(self, client: httpx.AsyncClient, headers: dict[str, str], digest: str) -> None:
        path = f"{CONTENT_PATH}/{digest}"
        async with client.stream("GET", path, headers=headers) as response:
            status = response.status_code
            body = await _read(response)
        if status == STANDBY_STATUS:
            raise StandbyError
        if status != httpx.codes.OK and status not in _REFUSALS:
            raise AnswerError("refused", f"the operator answered {status}")
        self._link.answered()
        if status in _REFUSALS:
            self._refuse(digest, "refused")
        elif len(body) > MAX_TEXT_BYTES:
            self._refuse(digest, "too-large")
        else:
            self._take(digest, body)

    def _take(self, digest: str, body: bytes) -> None:
        if digest not in self._wanted or digest in self._kept:
            return
        if self._size + len(body) > self._limit:
            self._over[digest] = len(body)
            self._meter.fetched("no-room")
            return
        try:
            payload = Payload.model_validate_json(body)
        except ValidationError:
            self._refuse(digest, "invalid")
            return
        if payload.digest != digest:
            self._refuse(digest, "invalid")
            return
        kept = self._kept[digest] = _Kept(payload, len(body))
        self._size += len(body)
        self._arrived += 1
        self._stale = True
        self._refused.pop(digest, None)
        self._over.pop(digest, None)
        # The costly part is done as each arrives, so that requests never wait for many.
        agree = [_agrees(kept.text(each.model), each) for each in self._wanted[digest]]
        self._meter.fetched("kept" if all(agree) else "mismatch")

    def _refuse(self, digest: str, result: str) -> None:
        self._refused[digest] = self._clock()
        self._meter.fetched(result)

    def _know_partly(self) -> None:
        """Take note at once that versions are declared whose text is not known."""
        if self._texts.whole:
            self._texts = self._texts.partly()
            self._use(self._texts)

    def _put_in_force_if_due(self) -> None:
        if self._stale and self._clock() >= self._due:
            began = self._clock()
            self._put_in_force()
            ended = self._clock()
            self._due = ended + PAUSE_FACTOR * (ended - began)

    def _put_in_force(self) -> None:
        self._arrived, self._stale = 0, False
        known = list(self._known())
        heads = (each.head for each in known)
        index = self._texts.heads.replaced(head for head in heads if head is not None)
        versions = sum(map(len, self._wanted.values()))
        self._texts = Texts(known, index, whole=self._named and len(known) == versions)
        self._use(self._texts)
        kept = len(self._kept)
        self._meter.keeping(kept, len(self._wanted) - kept, self._size)

    def _known(self) -> Iterator[KnownPrefix]:
        for digest, kept in self._kept.items():
            for prefix in self._wanted[digest]:
                text = kept.text(prefix.model)
                if text is not None and _agrees(text, prefix):
                    yield KnownPrefix(prefix, text)


def _agrees(text: Text | None, prefix: RoutePrefix) -> bool:
    """Return whether a text is what the table says of it."""
    return text is not None and text.fingerprint == prefix.fingerprint


async def _read(response: httpx.Response) -> bytes:
    """Return the answer, or a part of one that is too large."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_TEXT_BYTES:
            break
    return bytes(body)
