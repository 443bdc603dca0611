"""How long the operator's answers are waited for."""

from __future__ import annotations

import httpx
import pytest

from promptprefix.redial import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S
from promptprefix_sidecar.patience import MAX_ANSWER_S, MAX_CONNECT_S, Patience


def limits(patience: Patience) -> tuple[float | None, float | None]:
    return patience.timeout.connect, patience.timeout.read


def test_what_ran_out_is_longer_the_next_time_and_as_before_after_an_answer() -> None:
    patience = Patience()
    first = (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
    assert limits(patience) == first
    seen = []
    for _ in range(4):
        patience.failed(httpx.ConnectTimeout("slow"))
        seen.append(limits(patience))
    assert seen == [
        (6.0, 35.0),
        (MAX_CONNECT_S, 35.0),
        (MAX_CONNECT_S, 35.0),
        (MAX_CONNECT_S, 35.0),
    ]
    for _ in range(20):
        patience.failed(httpx.ReadTimeout("slow"))
        assert limits(patience) == (MAX_CONNECT_S, MAX_ANSWER_S)
    patience.answered()
    assert limits(patience) == first


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadError("reset")])
def test_what_failed_at_once_needs_no_more_time(error: httpx.HTTPError) -> None:
    patience = Patience()
    patience.failed(error)
    assert limits(patience) == (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
