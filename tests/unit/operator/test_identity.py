"""Token reviews: what is believed, and for how long it is remembered."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from promptprefix.wire import AUDIENCE
from promptprefix_operator import identity as module
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.identity import (
    MAX_CACHED,
    MAX_PAUSE_SECONDS,
    MAX_TOKEN_CHARS,
    Caller,
    TokenReviewer,
    caller_of,
    expiry_of,
)

POD = {
    "authentication.kubernetes.io/pod-name": ["p0"],
    "authentication.kubernetes.io/pod-uid": ["u0"],
}


def review(**status: Any) -> dict[str, Any]:
    good = {
        "authenticated": True,
        "audiences": [AUDIENCE],
        "user": {"username": "system:serviceaccount:ml:vllm", "extra": POD},
    }
    return {"status": good | status}


def user(name: str, extra: object = None) -> dict[str, Any]:
    return {"username": name, "extra": extra}


@pytest.mark.parametrize(
    ("answer", "caller"),
    [
        (review(), Caller("ml", "vllm", "u0")),
        (review(user=user("system:serviceaccount:ml:vllm")), Caller("ml", "vllm")),
        (
            review(user=user("system:serviceaccount:ml:vllm", {k: [] for k in POD})),
            Caller("ml", "vllm"),
        ),
        (review(authenticated=False), None),
        (review(authenticated="yes"), None),
        (review(audiences=[]), None),
        (review(audiences=["https://kubernetes.default.svc"]), None),
        (review(user=user("alice")), None),
        (review(user=user("system:serviceaccount:ml")), None),
        (review(user=user("system:serviceaccount:ml:vllm:x")), None),
        ({}, None),
    ],
)
def test_who_is_believed(answer: dict[str, Any], caller: Caller | None) -> None:
    assert caller_of(answer) == caller


def jwt(claims: object) -> str:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{text}.signature"


@pytest.mark.parametrize(
    ("token", "expiry"),
    [
        (jwt({"exp": 1_000}), 1_000.0),
        (jwt({"exp": "soon"}), None),
        (jwt([1]), None),
        ("a.%%%.c", None),
        ("opaque", None),
    ],
)
def test_claimed_expiry(token: str, expiry: float | None) -> None:
    assert expiry_of(token) == expiry


class Api:
    """Answers reviews; stands in for `ApiServer`."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.answer: dict[str, Any] | ApiError = review()

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
        assert body["spec"]["audiences"] == [AUDIENCE]
        self.tokens.append(body["spec"]["token"])
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


class Reviews:
    def __init__(self) -> None:
        self.api, self.now, self.size = Api(), 1_000.0, 0
        self.reviewer = TokenReviewer(
            self.api,  # type: ignore[arg-type]
            lambda: self.now,
            lambda: self.now,
            self._sized,
        )

    def _sized(self, size: int) -> None:
        self.size = size

    async def asked(self, token: str) -> bool:
        """Return whether the API server was asked."""
        before = len(self.api.tokens)
        await self.reviewer.review(token)
        return len(self.api.tokens) > before


async def test_a_good_answer_is_kept_for_a_minute() -> None:
    reviews = Reviews()
    assert await reviews.asked("t")
    reviews.now += 59
    assert not await reviews.asked("t")
    reviews.now += 1
    assert await reviews.asked("t")


def forged(claims: str) -> str:
    return f"head.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.signature"


@pytest.mark.parametrize(
    "token",
    [forged("[" * 11_000), forged(f'{{"exp": 1{"0" * 400}}}'), "head.\udcff.signature"],
    ids=["deep claims", "endless expiry", "bytes that are no text"],
)
async def test_a_forged_token_is_refused_and_breaks_nothing(token: str) -> None:
    reviews = Reviews()
    reviews.api.answer = review(authenticated=False)
    assert await reviews.reviewer.review(token) is None


async def test_never_longer_than_the_token_lives() -> None:
    reviews = Reviews()
    token = jwt({"exp": reviews.now + 5})
    assert await reviews.asked(token)
    reviews.now += 5
    assert await reviews.asked(token)


async def test_a_refusal_is_kept_for_ten_seconds_and_an_error_not_at_all() -> None:
    reviews = Reviews()
    reviews.api.answer = review(authenticated=False)
    assert await reviews.asked("t")
    assert not await reviews.asked("t")
    reviews.now += 10
    reviews.api.answer = ApiError(500, "no")
    with pytest.raises(ApiError):
        await reviews.reviewer.review("t")
    reviews.api.answer = review()
    reviews.now += 0.5
    assert await reviews.reviewer.review("t") == Caller("ml", "vllm", "u0")


async def test_an_api_server_that_is_away_is_asked_seldom_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(module, "log", log)
    reviews = Reviews()
    assert await reviews.asked("good")
    reviews.api.answer = ApiError(0, "no connection")
    for number in range(300):
        reviews.now += 0.2
        with pytest.raises(ApiError):
            await reviews.reviewer.review(f"t{number}")
    assert 60 / MAX_PAUSE_SECONDS <= len(reviews.api.tokens) < 30
    assert [call.args for call in log.calls] == [("tokens not reviewed",)]
    reviews.api.answer = review()
    reviews.now += MAX_PAUSE_SECONDS
    assert await reviews.asked("t")
    assert await reviews.asked("u")
    assert log.calls[-1].args == ("tokens are reviewed again",)


async def test_the_cache_is_bounded_and_holds_no_token() -> None:
    reviews = Reviews()
    for index in range(MAX_CACHED + 10):
        await reviews.reviewer.review(f"secret-{index}")
    assert reviews.size == MAX_CACHED
    assert "secret-" not in repr(vars(reviews.reviewer))
    assert await reviews.asked("secret-0")


async def test_a_flood_of_forged_tokens_displaces_no_good_one() -> None:
    reviews = Reviews()
    assert await reviews.asked("good")
    reviews.api.answer = review(authenticated=False)
    for index in range(MAX_CACHED + 10):
        await reviews.reviewer.review(f"forged-{index}")
    assert reviews.size == MAX_CACHED + 1
    assert not await reviews.asked("good")


async def test_oversized_tokens_are_not_sent_on() -> None:
    reviews = Reviews()
    assert await reviews.reviewer.review("x" * (MAX_TOKEN_CHARS + 1)) is None
    assert await reviews.reviewer.review("") is None
    assert reviews.api.tokens == []
