"""The election: who may act when, on clocks that differ, with requests that hang or collide."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from promptprefix_operator.api_server import ApiError, ApiServer, FencedError
from promptprefix_operator.leadership import (
    RELEASED_SECONDS,
    Record,
    Watch,
    micro_time,
    record_of,
    spec_of,
)
from tests.unit.operator.candidates import EPOCH, TIMES, Machine, Store, led_by_a

HELD = Record("a", 15, "t0", "t0", 1)
GIVEN_UP = Record("", RELEASED_SECONDS, "t0", "t9", 1)


@pytest.mark.parametrize(
    ("seen", "free_at"),
    [
        ([(HELD, 100.0)], 115.0),
        ([(HELD, 100.0), (HELD, 110.0)], 115.0),
        ([(HELD, 100.0), (Record("a", 15, "t0", "t1", 1), 110.0)], 125.0),
        ([(HELD, 100.0), (GIVEN_UP, 102.0)], 102.0),
        ([(GIVEN_UP, 50.0)], 50.0),
        ([(Record(), 50.0)], 62.0),
        ([(Record(), -50.0)], -38.0),
        ([(HELD, 100.0), (Record(), 101.0)], 115.0),
        ([(HELD, 100.0), (Record(), 112.0)], 124.0),
        ([(GIVEN_UP, 100.0), (Record(), 112.0)], 124.0),
        ([(Record("a", 40, "t0", "t0", 1), 100.0)], 140.0),
        ([(Record("a", 0, "t0", "t0", 1), 100.0)], 115.0),
        ([(HELD, 100.0), (Record("", 15, "t0", "t0", 1), 101.0)], 115.0),
    ],
)
def test_when_a_candidate_may_take_the_lead(
    seen: list[tuple[Record, float]], free_at: float
) -> None:
    watch = Watch(TIMES)
    for record, now in seen:
        watch.see(record, now)
    assert watch.free_at == free_at


@pytest.mark.parametrize(
    ("seen", "free_at"),
    [
        ([(Record(), 50.0)], 53.0),
        ([(HELD, 50.0)], 65.0),
        ([(HELD, 50.0), (Record(), 60.0)], 72.0),
        ([(Record(), 50.0), (HELD, 51.0), (Record(), 52.0)], 66.0),
    ],
)
def test_only_the_first_record_that_nobody_held_is_free_soon(
    seen: list[tuple[Record, float]], free_at: float
) -> None:
    watch = Watch(TIMES)
    for record, now in seen:
        watch.see(record, now, first=True)
    assert watch.free_at == free_at


def test_two_empty_records_may_hide_a_leader() -> None:
    watch = Watch(TIMES)
    for version, now, free_at in (("1", 50.0, 62.0), ("1", 55.0, 62.0), ("4", 61.0, 73.0)):
        watch.see(Record(), now, version)
        assert watch.free_at == free_at


def test_a_record_survives_the_api_server() -> None:
    record = Record("a", 15, micro_time(EPOCH), micro_time(EPOCH), 3)
    assert record_of({"spec": spec_of(record)}) == record
    assert record_of({}) == Record()
    assert micro_time(EPOCH) == "2026-01-01T00:00:00.000000Z"


async def test_an_empty_lease_is_taken_once_no_leader_may_act() -> None:
    machine = Machine(Store(), "a")
    assert not await machine.attempt()
    machine.time += TIMES.settle
    assert await machine.attempt()
    assert machine.store.record == Record(
        "a", 15, "2026-01-01T00:00:12.000000Z", "2026-01-01T00:00:12.000000Z", 1
    )
    assert machine.candidate.seconds_left() == 10.0
    assert machine.changes == 1
    reads = machine.store.reads
    machine.time += 2
    assert await machine.attempt()
    assert machine.store.reads == reads, "a renewal needs one request"
    assert machine.store.record.renewed == "2026-01-01T00:00:14.000000Z"
    assert machine.store.record.acquired == "2026-01-01T00:00:12.000000Z"


async def test_a_missing_lease_is_created_and_goes_with_the_installation() -> None:
    store = Store(lease=None)
    a, b = Machine(store, "a"), Machine(store, "b")
    assert not await a.attempt()
    assert not await b.attempt()
    for machine in (a, b):
        machine.time += TIMES.first
    assert not await b.attempt(), "b found a Lease, and knows nothing of those before"
    assert await a.attempt()
    assert not await b.attempt()
    assert (store.record.holder, store.creations) == ("a", 1)
    assert store.owners == [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": "promptprefix-operator-tls",
            "uid": "secret-uid",
        }
    ]


async def test_a_lease_that_is_deleted_stays_with_its_leader() -> None:
    a, b = await led_by_a()
    a.store.lease = None
    a.time += TIMES.retry
    assert await a.attempt(), "created and taken at once"
    assert (a.store.record.holder, a.store.creations) == ("a", 2)
    b.time += TIMES.retry
    assert not await b.attempt()


@pytest.mark.parametrize("lease", [None, {"metadata": {"resourceVersion": "77"}}])
@pytest.mark.parametrize("signed", [True, False])
async def test_a_new_candidate_waits_for_a_leader_that_is_cut_off(
    lease: dict[str, Any] | None, signed: bool
) -> None:
    """Of whom nothing is left to see: no Lease, and no term where nobody leaves one."""
    a, _ = await led_by_a(signed=signed)
    a.cut, a.store.lease = True, lease
    c = Machine(a.store, "c", signed=signed)
    assert not await c.attempt()
    while a.leads:
        a.time, c.time = a.time + 0.5, c.time + 0.5
        assert not await a.attempt()
        assert not await c.attempt()
    c.time += TIMES.retry
    assert await c.attempt()
    a.cut = False
    assert not await a.attempt()


async def test_a_lost_secret_does_not_end_the_leader(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    a, _ = await led_by_a()
    a.store.lease = a.store.secret = None
    for _ in range(3):
        a.time += TIMES.retry
        assert await a.attempt()
    assert (a.store.record.holder, a.store.owners) == ("a", [])
    told = capsys.readouterr().out + caplog.text  # wherever tests before this one sent logs
    assert told.count("create the Secret anew, empty") == 1
    assert "promptprefix-operator-tls" in told


async def test_without_the_secret_nobody_knows_whether_somebody_led() -> None:
    machine = Machine(Store(lease=None, secret=None), "a")
    assert not await machine.attempt()
    machine.time += TIMES.settle - 0.1
    assert not await machine.attempt()
    machine.time += 0.1
    assert await machine.attempt()


async def test_a_dead_leader_is_followed_after_its_lease_by_the_watchers_own_clock() -> None:
    _, b = await led_by_a()
    b.time += 14.9
    assert not await b.attempt()
    b.time += 0.2
    assert await b.attempt()
    assert b.store.record.holder == "b"
    assert b.store.record.transitions == 2
    assert b.changes == 2
    assert b.candidate.after_silence


async def test_a_leader_that_lives_is_never_followed() -> None:
    a, b = await led_by_a()
    for _ in range(50):
        a.time, b.time = a.time + 2, b.time + 2
        assert await a.attempt()
        assert not await b.attempt()


async def test_a_frozen_leader_may_not_act_when_it_wakes() -> None:
    a, b = await led_by_a()
    a.time, b.time = a.time + 10, b.time + 16
    assert await b.attempt()
    assert not a.leads
    a.time += 6
    assert not await a.attempt()
    assert not a.leads
    assert b.store.record.holder == "b"


async def test_a_released_lease_is_taken_at_once() -> None:
    a, b = await led_by_a()
    await a.candidate.release()
    assert not a.leads
    b.time += 1
    assert await b.attempt()
    assert b.store.record.holder == "b"
    assert not b.candidate.after_silence


async def test_only_the_holder_releases() -> None:
    a, b = await led_by_a()
    b.time += 16
    assert await b.attempt()
    lease = b.store.lease
    await a.candidate.release()
    assert b.store.lease == lease
    reads = b.store.reads
    await Machine(b.store, "c").candidate.release()
    assert b.store.reads == reads, "who never asked has nothing to release"


async def test_a_reset_lease_stays_with_its_leader() -> None:
    a, b = await led_by_a()
    assert a.store.lease is not None
    a.store.lease = {"metadata": {"resourceVersion": "77"}}
    b.time += 2
    assert not await b.attempt(), "b knows that somebody leads"
    c = Machine(a.store, "c")
    assert not await c.attempt(), "c does not, and waits until nobody may"
    a.time += 2
    assert await a.attempt()
    assert a.store.record.holder == "a"
    c.time += TIMES.settle
    assert not await c.attempt()


async def test_a_stranger_s_edit_is_no_loss() -> None:
    a, _ = await led_by_a()
    assert a.store.lease is not None
    a.store.lease["metadata"]["resourceVersion"] = "50"
    a.time += 2
    assert await a.attempt()
    assert a.store.record.holder == "a"


async def test_an_answer_that_is_lost_extends_nothing_and_loses_nothing() -> None:
    a, b = await led_by_a()
    a.store.lost_answers = 1
    a.time += 2
    assert not await a.attempt()
    assert a.candidate.seconds_left() == 8.0
    b.time += 2
    await b.attempt()
    a.time += 2
    assert await a.attempt()
    assert a.candidate.seconds_left() == 10.0


async def test_a_takeover_whose_answer_is_lost_is_known_at_the_next_look() -> None:
    _, b = await led_by_a()
    b.store.lost_answers = 1
    b.time += 16
    assert not await b.attempt()
    assert not b.leads
    b.time += 2
    assert await b.attempt()
    assert b.store.record.transitions == 2


async def test_what_is_wrong_is_told_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(Store(), "a", cut=True)
    for _ in range(3):
        assert not await machine.attempt()
    told = capsys.readouterr().out + caplog.text  # wherever tests before this one sent logs
    assert told.count("'t be read or written") == told.count("unreachable") == 1


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)


async def drive(
    machine: Machine, work: Callable[[], Any], seconds: list[float]
) -> asyncio.Task[Any]:
    """Run ``work``; each of its sleeps takes no time but moves the machine's clock."""
    real = asyncio.sleep

    async def sleep(pause: float) -> None:
        seconds.append(pause)
        machine.time += pause
        await real(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("promptprefix_operator.leadership.asyncio.sleep", sleep)
        task = asyncio.create_task(work())
        await asyncio.wait({task}, timeout=5)
    return task


@pytest.mark.usefixtures("no_jitter")
async def test_a_leader_that_can_not_renew_acts_no_more_and_ends_a_lease_later() -> None:
    a, b = await led_by_a()
    b.store.failure = ApiError(500, "etcd has no leader")
    began, pauses = a.time, list[float]()
    task = await drive(a, a.candidate.hold, pauses)
    assert "etcd has no leader" in task.result()
    assert sum(pauses[:5]) == pytest.approx(TIMES.renew)
    assert 0 <= a.time - began - TIMES.renew - TIMES.lease < TIMES.retry
    assert max(pauses) <= TIMES.retry
    assert not a.leads


@pytest.mark.parametrize("away", [10.0, 24.0, 3600.0])
async def test_a_leader_that_was_frozen_goes_on_where_nobody_else_has_led(
    monkeypatch: pytest.MonkeyPatch, away: float
) -> None:
    a, _ = await led_by_a()
    a.time += away
    assert not a.leads

    async def sleep(_: float) -> None:
        if a.leads:
            raise ZeroDivisionError

    monkeypatch.setattr("promptprefix_operator.leadership.asyncio.sleep", sleep)
    with pytest.raises(ZeroDivisionError):
        await a.candidate.hold()
    assert a.candidate.seconds_left() == TIMES.renew
    assert a.changes == 1


@pytest.mark.usefixtures("no_jitter")
async def test_a_leader_that_sees_another_one_stops_at_once() -> None:
    a, b = await led_by_a()
    b.time += 16
    assert await b.attempt()
    began = a.time
    task = await drive(a, a.candidate.hold, [])
    assert task.result() == "b leads"
    assert a.time - began == TIMES.retry


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize("given_up", [False, True])
async def test_a_leader_that_was_frozen_ends_where_another_one_has_led(given_up: bool) -> None:
    a, b = await led_by_a()
    b.time += 16
    assert await b.attempt()
    if given_up:
        await b.candidate.release()
    a.time += 16
    tried = a.store.writes
    task = await drive(a, a.candidate.hold, [])
    assert task.result() == ("nobody leads" if given_up else "b leads")
    assert not a.leads
    assert a.store.writes == tried


async def test_a_request_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(Store(), "a")

    async def hang(path: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(machine.store, "get", hang)
    assert not await machine.candidate._attempt(0.01)


async def test_writes_are_refused_without_the_lead() -> None:
    a, _ = await led_by_a()
    api = ApiServer.__new__(ApiServer)  # no connection: a refused write needs none
    fenced = api.fenced(a.candidate.seconds_left)
    a.time += 10
    for write in (fenced.create, fenced.replace):
        with pytest.raises(FencedError, match="does not lead"):
            await write("/api/v1/x", {})
    with pytest.raises(FencedError):
        await fenced.patch("/api/v1/x", {}, "application/merge-patch+json")
