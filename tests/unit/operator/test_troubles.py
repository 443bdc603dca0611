"""What is told of failures: the first, one line a minute, the recovery; and how long all wait."""

from __future__ import annotations

import pytest
from structlog.testing import CapturingLogger

from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff, Pause
from promptprefix_operator.troubles import SUMMARY_SECONDS, Troubles

AWAY = ApiError(0, "no connection")
REFUSED = ApiError(422, "invalid")


class Desk:
    def __init__(self) -> None:
        self.now = 0.0
        self.log = CapturingLogger()
        self.troubles = Troubles(self.log, lambda: self.now, "failing", "well")

    @property
    def lines(self) -> list[str]:
        return [call.args[0] for call in self.log.calls]


def test_the_first_failure_is_told_with_its_place_and_the_rest_in_sum() -> None:
    desk = Desk()
    for number in range(300):
        desk.troubles.failed(f"u{number}", AWAY, prefix=f"p{number}")
    [first] = desk.log.calls
    assert first.kwargs == {
        "error": "no connection",
        "failing": 1,
        "untold": 0,
        "prefix": "p0",
    }
    desk.now = SUMMARY_SECONDS
    desk.troubles.failed("u0", AWAY)
    assert desk.log.calls[-1].kwargs == {"error": "no connection", "failing": 300, "untold": 299}


def test_another_failure_is_told_at_once() -> None:
    desk = Desk()
    for error in (AWAY, REFUSED, AWAY, REFUSED):
        desk.troubles.failed("u", error)
    assert [call.kwargs["error"] for call in desk.log.calls] == ["no connection", "invalid"]


def test_it_is_well_again_when_nothing_fails_any_more() -> None:
    desk = Desk()
    desk.troubles.worked("u")
    for key in ("u", "v"):
        desk.troubles.failed(key, AWAY)
    desk.troubles.worked("u")
    desk.troubles.worked("w")
    assert desk.lines == ["failing"]
    desk.troubles.worked("v")
    assert desk.lines == ["failing", "well"]
    desk.troubles.worked("v")
    assert desk.lines == ["failing", "well"]


def test_what_comes_and_goes_is_told_no_oftener() -> None:
    desk = Desk()
    for _ in range(600):
        desk.troubles.failed("u", AWAY)
        desk.troubles.worked("u")
        desk.now += 1.0
    assert desk.lines == ["failing", "well"] * 10


def test_a_pause_grows_with_each_failure_after_it_and_not_within(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.uniform", lambda _, high: high)
    now = 100.0
    pause = Pause(lambda: now, limit=3.0)
    assert pause.wait == 0.0
    for expected in (0.5, 1.0, 2.0, 3.0, 3.0):
        for _ in range(16):
            pause.failed()
        assert pause.wait == pytest.approx(expected)
        now += expected
        assert pause.wait == pytest.approx(0.0)
    pause.failed()
    pause.worked()
    assert pause.wait == 0.0
    pause.failed()
    assert pause.wait == pytest.approx(Backoff().next())


@pytest.mark.parametrize(
    ("status", "away"),
    [(0, True), (429, True), (500, True), (503, True), (403, False), (409, False)],
)
def test_an_answer_that_nobody_gets_is_told_apart(status: int, away: bool) -> None:
    assert ApiError(status, "").away is away
