"""Which texts are read and kept, and that nothing else depends on them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx
import pytest

from promptprefix.fingerprint import payload_fingerprint, system_bytes
from promptprefix.payload import Payload
from promptprefix.wire import RoutePrefix
from promptprefix_router.control import text_keeper
from promptprefix_router.control.control_link import Backoff, ControlAccess
from promptprefix_router.control.text_keeper import RETRY_S, TextKeeper
from promptprefix_router.matching.texts import Texts

from .samples import MODEL, PAYLOAD, prefix, routes

OWNER = "tenant-a"
SECRET = "You are the keeper of a text that must not leak."


def payload(number: int) -> Payload:
    return Payload(systemInstructions=f"{SECRET} {number:04}")


def declared(text: Payload, tokens: int = 1, **changes: object) -> RoutePrefix:
    fields = {
        "content_digest": text.digest,
        "fingerprint": payload_fingerprint(MODEL, text),
        "tokens": tokens,
    }
    return prefix(text.digest[:6], id=f"u-{text.digest[:6]}", **{**fields, **changes})


class Stand:
    """A keeper, and an operator that answers by path."""

    def __init__(self, token: Path, limit: int = 1_000_000) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.bearers: set[str] = set()
        self.results: list[str] = []
        self.counts = (0, 0, 0)
        self.texts = Texts()
        self.uses = 0
        self.answers: dict[str, httpx.Response | Exception] = {}
        self.open = 0
        self.most = 0
        self.changed = asyncio.Event()
        self.keeper = TextKeeper(
            ControlAccess(self.connect, token, Backoff(0.001, 0.002), self.sleep),
            limit,
            self.use,
            self,
            lambda: self.now,
        )

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def serve(self, *texts: Payload) -> None:
        for text in texts:
            body = text.model_dump_json()
            self.answers[f"/v1/content/{text.digest}"] = httpx.Response(200, text=body)

    def want(self, *prefixes: RoutePrefix) -> None:
        self.keeper.want(routes(prefixes=prefixes))

    def connect(self) -> httpx.AsyncClient:
        transport = httpx.MockTransport(self._answer)
        return httpx.AsyncClient(transport=transport, base_url="https://operator")

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        self.bearers.add(request.headers["authorization"])
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        answer = self.answers.get(request.url.path, httpx.Response(404))
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)

    def use(self, texts: Texts) -> None:
        self.texts = texts
        self.uses += 1
        self.changed.set()

    def fetched(self, result: str) -> None:
        self.results.append(result)
        self.changed.set()

    def keeping(self, texts: int, missing: int, size: int) -> None:
        self.counts = (texts, missing, size)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def names(self) -> set[str]:
        return {each.prefix.name for each in self.texts.known}

    def head(self, text: Payload, owner: str = "") -> str | None:
        known = self.texts.known_as(payload_fingerprint(MODEL, text))
        if not known:
            return None
        return self.texts.heads.longest(
            known[0].text.frame, owner, system_bytes(f"{text.system} Now.")
        )


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("secret-token\n")
    return file


@pytest.fixture
async def stand(token: Path) -> AsyncIterator[Stand]:
    made = Stand(token)
    task = asyncio.create_task(made.keeper.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_texts_of_the_table_are_read_and_those_that_left_it_are_dropped(
    stand: Stand,
) -> None:
    one, two = payload(1), PAYLOAD
    stand.serve(one, two)
    stand.want(declared(one), declared(two, owner=OWNER))
    await stand.until(lambda: len(stand.texts) == 2)
    assert stand.head(one) == payload_fingerprint(MODEL, one)
    assert stand.head(two) is None
    assert stand.head(two, OWNER) == payload_fingerprint(MODEL, two)
    assert stand.bearers == {"Bearer secret-token"}
    uses = stand.uses
    stand.want(declared(two, owner=OWNER, token_digests=("d2",)), declared(one))
    assert stand.uses == uses, "what is warm is no news for texts"
    stand.want(declared(two))
    assert (len(stand.texts), stand.head(one), stand.head(two, OWNER)) == (1, None, None)
    assert stand.head(two) == payload_fingerprint(MODEL, two), "the new owner, the known text"
    assert sorted(stand.asked) == sorted(f"/v1/content/{each.digest}" for each in (one, two))
    assert stand.counts == (1, 0, len(two.model_dump_json()))
    stand.want()
    assert (len(stand.texts), stand.counts) == (0, (0, 0, 0))


async def test_one_text_of_two_models_is_read_once(stand: Stand) -> None:
    text = payload(1)
    stand.serve(text)
    other = declared(text, model="n", fingerprint=payload_fingerprint("n", text))
    stand.want(declared(text), other)
    await stand.until(lambda: len(stand.texts) == 2)
    assert len(stand.asked) == 1


async def test_many_texts_are_asked_for_a_few_at_a_time(stand: Stand) -> None:
    texts = [payload(number) for number in range(150)]
    stand.serve(*texts)
    stand.want(*map(declared, texts))
    await stand.until(lambda: len(stand.texts) == 150)
    assert stand.most == text_keeper.AT_ONCE
    assert stand.uses < 6, "not put in force one by one"


async def test_texts_that_come_one_by_one_are_put_in_force_together(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work for n texts is that of n texts, not of n times n."""
    texts = [payload(number) for number in range(60)]
    stand = Stand(token)
    stand.serve(*texts)
    built: list[int] = []
    put = TextKeeper._put_in_force

    def slow(keeper: TextKeeper) -> None:
        put(keeper)
        built.append(len(stand.texts))
        stand.now += 0.001 * len(stand.texts)

    monkeypatch.setattr(TextKeeper, "_put_in_force", slow)
    async with stand.connect() as client:
        for number in range(1, 61):
            stand.want(*map(declared, texts[:number]))
            await stand.keeper.exchange(client)
            stand.now += 0.1
        assert stand.texts.whole is False
        assert sum(built) < 5 * 60
        stand.now += 10
        stand.keeper._put_in_force_if_due()
    assert (len(stand.texts), stand.texts.whole) == (60, True)


async def test_how_large_texts_are_is_known_when_all_are(stand: Stand) -> None:
    stand.serve(PAYLOAD)
    stand.want(declared(PAYLOAD), declared(OWN))
    await stand.until(lambda: len(stand.texts) == 1 and "refused" in stand.results)
    assert stand.texts.largest_frame == math.inf
    stand.want(declared(PAYLOAD))
    assert stand.texts.largest_frame == stand.texts.known[0].text.frame_bytes
    stand.want(declared(PAYLOAD), declared(payload(2), content_digest=""))
    assert stand.texts.largest_frame == math.inf, "of one it is never told"


async def test_what_has_the_most_tokens_comes_first_and_the_limit_holds(token: Path) -> None:
    texts = [payload(number) for number in range(9)]
    size = len(texts[0].model_dump_json())
    stand = Stand(token, limit=5 * size + 1)
    stand.serve(*texts)
    stand.want(*(declared(text, tokens=number) for number, text in enumerate(texts)))
    task = asyncio.create_task(stand.keeper.run())
    await stand.until(lambda: stand.results.count("no-room") == 4)
    await stand.until(lambda: len(stand.texts) == 5)
    assert stand.names == {text.digest[:6] for text in texts[4:]}
    assert stand.counts == (5, 4, 5 * size)
    asked = len(stand.asked)
    stand.want(*(declared(text) for text in texts), declared(PAYLOAD, content_digest=""))
    await asyncio.sleep(0)
    assert len(stand.asked) == asked, "what had no room is not asked for again"
    stand.want(*(declared(text) for text in texts[:5]))
    await stand.until(lambda: len(stand.texts) == 5)
    assert stand.names == {text.digest[:6] for text in texts[:5]}, "there is room again"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("limit", [0, 1_000_000])
def test_nothing_is_asked_for_without_room_or_digests(token: Path, limit: int) -> None:
    stand = Stand(token, limit)
    stand.want(declared(payload(1), content_digest="" if limit else payload(1).digest))
    assert stand.keeper._missing() == []


def spoilt(text: Payload) -> httpx.Response:
    return httpx.Response(
        200, text=text.model_copy(update={"systemInstructions": "x"}).model_dump_json()
    )


OWN = payload(1)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (httpx.Response(403), "refused"),
        (httpx.Response(404), "refused"),
        (spoilt(OWN), "invalid"),
        (httpx.Response(200, text="{"), "invalid"),
        (httpx.Response(200, text=f'{{"systemInstructions": ["{SECRET}"]}}'), "invalid"),
        (httpx.Response(200, content=b" " * 301), "too-large"),
    ],
)
async def test_a_text_that_is_refused_or_wrong_does_not_keep_others_away(
    stand: Stand,
    answer: httpx.Response,
    result: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(text_keeper, "MAX_TEXT_BYTES", 300)
    good = Payload(systemInstructions="x")
    stand.serve(good)
    stand.answers[f"/v1/content/{OWN.digest}"] = answer
    stand.want(declared(OWN, tokens=9), declared(good))
    await stand.until(lambda: result in stand.results and len(stand.texts) == 1)
    assert stand.head(OWN) is None
    assert stand.keeper._missing() == []
    stand.now += RETRY_S
    assert stand.keeper._missing() == [OWN.digest], "it is asked for again later"
    assert SECRET not in capsys.readouterr().err


async def test_a_text_with_another_fingerprint_than_the_tables_is_not_matched(
    stand: Stand,
) -> None:
    stand.serve(OWN)
    stand.want(declared(OWN, fingerprint="pp1:sha256:other"))
    await stand.until(lambda: "mismatch" in stand.results)
    assert (len(stand.texts), stand.head(OWN)) == (0, None)


FAILURES: Sequence[httpx.Response | Exception] = [
    httpx.Response(500),
    httpx.Response(401),
    httpx.Response(421),
    httpx.ConnectError("away"),
    httpx.ReadTimeout("slow"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
async def test_a_failure_is_tried_again_and_known_texts_stay(
    stand: Stand, failure: httpx.Response | Exception
) -> None:
    stand.serve(PAYLOAD)
    stand.want(declared(PAYLOAD))
    await stand.until(lambda: len(stand.texts) == 1)
    stand.answers[f"/v1/content/{OWN.digest}"] = failure
    stand.want(declared(PAYLOAD), declared(OWN))
    asked = len(stand.asked)
    async with asyncio.timeout(10):
        while len(stand.asked) < asked + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert stand.head(PAYLOAD) is not None
    stand.serve(OWN)
    await stand.until(lambda: len(stand.texts) == 2)


async def test_one_that_fails_for_ever_does_not_keep_others_away(stand: Stand) -> None:
    stand.serve(PAYLOAD)
    stand.answers[f"/v1/content/{OWN.digest}"] = httpx.Response(500)
    stand.want(declared(OWN, tokens=9), declared(PAYLOAD))
    await stand.until(lambda: stand.head(PAYLOAD) is not None)
