"""What a pod of the router does before it is stopped."""

from __future__ import annotations

import httpx
import pytest

from promptprefix_router.envoy.drain import FAILED, drain

ADMIN = "http://127.0.0.1:9901"


def test_envoy_is_told_and_given_time() -> None:
    events: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        events.append(f"{request.method} {request.url}")
        return httpx.Response(200)

    transport = httpx.MockTransport(answer)
    assert drain(ADMIN, 7, transport, lambda seconds: events.append(f"sleep {seconds:g}")) == 0
    assert events == [f"POST {ADMIN}/healthcheck/fail", "sleep 7"]


def test_without_envoy_there_is_nothing_to_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    assert drain(ADMIN, 7, transport, pytest.fail) == FAILED
    assert ADMIN in capsys.readouterr().err
