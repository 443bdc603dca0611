"""Commands to an engine whose answers come late: leases and what else is due must not suffer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from promptprefix.resource import Pinning
from promptprefix_sidecar.actions import Policy, Renew, Report, Unpin, Warm
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.evidence import with_report
from promptprefix_sidecar.metrics import Metrics
from promptprefix_sidecar.own_traffic import OwnTraffic
from promptprefix_sidecar.pin_commander import PinCommander
from promptprefix_sidecar.pin_desk import CONCURRENT_RENEWALS, PinDesk
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.prefilling import Prefiller
from promptprefix_sidecar.snapshot import PluginStatus, Snapshot
from promptprefix_sidecar.state import Address, sidecar_state

from .records import pin, prepared, report, snapshot, warm

LEASE_S = 120
POLICY = Policy(lease_s=LEASE_S)


class BusyEngine:
    """Takes every command and answers none; remembers how long each was waited for."""

    def __init__(self, board: Board, folder: Path) -> None:
        self.now = 0.0
        self.waits: list[tuple[str, float]] = []
        key_file = folder / "key"
        key_file.write_bytes(b"k" * 32)
        client = httpx.AsyncClient(
            base_url="http://engine", transport=httpx.MockTransport(self._take)
        )
        engine, clock = EngineApi(client), Clock(monotonic=lambda: self.now)
        commander = PinCommander(engine, key_file, clock, lease_s=LEASE_S)
        traffic = OwnTraffic(Metrics())
        prefiller = Prefiller(board, engine, commander, traffic, POLICY, clock)
        self.desk = PinDesk(board, commander, prefiller, traffic, clock, lambda _: None)

    def _take(self, request: httpx.Request) -> httpx.Response:
        command = json.loads(json.loads(request.content)["vllm_xargs"]["promptprefix"])
        self.waits.append((command["op"], request.extensions["timeout"]["read"]))
        raise httpx.ReadTimeout("late", request=request)


def pinned(count: int, *, at: float = 0.0) -> Snapshot:
    records = [warm(f"r{number}") for number in range(count)]
    return snapshot(*records, found=report(*(pin(record) for record in records), at=at))


@pytest.mark.parametrize("count", [1, 8, 64, 256])
async def test_all_leases_are_renewed_in_time_though_no_renewal_is_answered(
    tmp_path: Path, count: int
) -> None:
    board = Board(pinned(count, at=39.0))
    engine = BusyEngine(board, tmp_path)
    engine.now = 40.0
    renewal = plan(board.snapshot, POLICY, engine.now).keep
    assert isinstance(renewal, Renew)
    await engine.desk.renew(renewal.pins)
    assert len(engine.waits) == count
    # A command is carried out when it arrives. All have arrived once the last wait begins.
    rounds = math.ceil(count / CONCURRENT_RENEWALS)
    assert rounds * max(wait for _, wait in engine.waits) <= LEASE_S / 3


async def test_late_renewals_leave_room_for_other_commands_and_come_again(tmp_path: Path) -> None:
    before = pinned(2)
    board = Board(snapshot(before.records["r0"], found=before.plugin.report))
    engine = BusyEngine(board, tmp_path)
    engine.now = 40.0
    renewal = plan(board.snapshot, POLICY, engine.now).keep
    assert isinstance(renewal, Renew)
    await engine.desk.renew(renewal.pins)
    engine.now = 42.0
    assert isinstance(plan(board.snapshot, POLICY, engine.now).keep, Unpin)
    engine.now = 60.0
    assert isinstance(plan(board.snapshot, POLICY, engine.now).keep, Renew)


@pytest.mark.parametrize("status", [PluginStatus.UNKNOWN, PluginStatus.WORKING])
async def test_the_first_report_is_waited_for_as_long_as_a_lease(
    tmp_path: Path, status: PluginStatus
) -> None:
    """Until it comes no pin is known, so none can be renewed; asked again it stands last."""
    known = report() if status is PluginStatus.WORKING else None
    board = Board(snapshot(found=known, status=status))
    engine = BusyEngine(board, tmp_path)
    await engine.desk.report()
    ((_, wait),) = engine.waits
    assert wait == (LEASE_S if known is None else 15.0)


async def reports(engine: BusyEngine, *times: float) -> None:
    """Ask in vain for a report at each of these times."""
    for engine.now in times:
        await engine.desk.report()


async def test_a_plugin_that_never_reports_is_done_without_and_says_why(tmp_path: Path) -> None:
    board = Board(snapshot(prepared("a"), status=PluginStatus.UNKNOWN))
    engine = BusyEngine(board, tmp_path)
    await reports(engine, 100.0, 110.0, 129.0)
    assert board.snapshot.plugin.status is PluginStatus.UNKNOWN
    assert plan(board.snapshot, POLICY, 129.0).warm is None, "its pins may be there"
    await reports(engine, 130.0)
    assert board.snapshot.plugin.status is PluginStatus.REFUSING
    assert plan(board.snapshot, POLICY, 130.0).warm == Warm("a", hard=False)
    state = sidecar_state(board.snapshot, Address("10.0.0.1", 8000))
    assert "the pin plugin gives no report" in state.engine.soft_reason
    assert "in time" in state.engine.soft_reason
    softly = replace(board.snapshot, records={"a": warm("a", pinned=Pinning.SOFT)})
    [told] = sidecar_state(softly, Address("10.0.0.1", 8000)).placements
    assert (told.reason, told.message) == ("SoftPinned", state.engine.soft_reason)
    assert plan(board.snapshot, POLICY, 189.0).keep is None
    assert plan(board.snapshot, POLICY, 190.0).keep == Report()
    await reports(engine, 190.0)
    assert board.snapshot.plugin.status is PluginStatus.REFUSING
    assert plan(board.snapshot, POLICY, 249.0).keep is None


async def test_one_report_that_waited_for_a_busy_engine_is_no_silence(tmp_path: Path) -> None:
    board = Board(snapshot(status=PluginStatus.UNKNOWN))
    engine = BusyEngine(board, tmp_path)
    await reports(engine, 100.0)
    moment = Clock(monotonic=lambda: 150.0).moment()
    board.apply(lambda s: with_report(s, report(at=150.0), moment))
    assert board.snapshot.plugin.status is PluginStatus.WORKING
    await reports(engine, 151.0, 160.0)
    assert board.snapshot.plugin.status is PluginStatus.WORKING, "it counts from the last one"


@pytest.mark.parametrize(("heard_at", "lost_at"), [(0.0, 120.0), (90.0, 210.0)])
async def test_what_a_plugin_told_is_trusted_for_a_lease(
    tmp_path: Path, heard_at: float, lost_at: float
) -> None:
    """The answer to a renewal tells of a pin too."""
    record = warm("a")
    board = Board(snapshot(record, found=report(pin(record, seen_at=heard_at))))
    engine = BusyEngine(board, tmp_path)
    await reports(engine, 20.0, 60.0, lost_at - 1.0)
    assert board.snapshot.records["a"].pinned is Pinning.HARD
    await reports(engine, lost_at)
    assert board.snapshot.records["a"].pinned is Pinning.SOFT
    assert board.snapshot.records["a"].touch_at <= lost_at, "whether it is there is asked at once"
