"""Commands, the moments they act at, and the words of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_vllm.adapters import Adapter
from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.commands import encode
from promptprefix_vllm.connectors import Transfer
from promptprefix_vllm.desk import MAX_PENDING, PinDesk
from promptprefix_vllm.pins import PinTable

KEY = b"k" * 32
EPOCH = "e1"
SIZE = 4


class Block:
    """A cached block."""

    is_null = False

    def __init__(self, number: int) -> None:
        self.block_id = number
        self.ref_cnt = 0
        self.block_hash: bytes | None = bytes([number])


class Pool:
    """Every hash is cached, in the block of that number."""

    num_gpu_blocks = 21

    def __init__(self) -> None:
        self.blocks = [Block(number) for number in range(21)]

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> Any:
        block = self.blocks[block_hash[0]]
        return [block] if block.block_hash else None

    def evict_blocks(self, block_ids: set[int]) -> None:
        for number in block_ids:
            self.blocks[number].block_hash = None

    def get_num_free_blocks(self) -> int:
        return sum(1 for block in self.blocks[1:] if not block.ref_cnt)


class Bench:
    """A desk with clocks that the test turns."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.table = PinTable(PrefixCache(self.pool, SIZE), SIZE, budget_blocks=10)
        self.now = 50.0
        self.desk = PinDesk(
            self.table,
            KEY,
            EPOCH,
            wall_clock=lambda: 1000.0,
            monotonic=lambda: self.now,
            transfer=Transfer(offload_tier="", kv_role=""),
        )
        self.counter = 0

    def wire(self, op: str, pin_id: str, tokens: int, prompt: list[int], **change: Any) -> str:
        self.counter += 1
        fields: dict[str, Any] = {
            "v": 1,
            "op": op,
            "id": pin_id,
            "epoch": EPOCH,
            "counter": self.counter,
            "expiry": 1060,
            "lease": 60 if op in ("pin", "renew") else 0,
            "priority": 0,
            "tokens": tokens,
            **change,
        }
        return encode(fields, prompt, KEY)

    def send(
        self,
        op: str,
        pin_id: str = "",
        tokens: int = 0,
        completed: bool = True,
        adapter: Adapter | None = None,
        **change: Any,
    ) -> Any:
        prompt = list(range(tokens + 1))
        hashes = [bytes([number + 1]) for number in range(tokens // SIZE)]
        wire = self.wire(op, pin_id, tokens, prompt, **change)
        self.desk.receive("r", wire, prompt, hashes, adapter)
        assert self.desk.knows("r")
        answer = self.desk.finish("r", hashes, completed, adapter)
        assert not self.desk.knows("r")
        return answer


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_pin_is_answered_whole(bench: Bench) -> None:
    assert bench.send("pin", "a", 8, priority=3) == {
        "v": 1,
        "ok": True,
        "reason": "",
        "message": "",
        "epoch": EPOCH,
        "pin_epoch": 0,
        "block_size": SIZE,
        "blocks_total": 20,
        "blocks_free": 18,
        "blocks_pinned": 2,
        "budget_blocks": 10,
        "offload_tier": "",
        "kv_role": "",
        "pins": [
            {
                "id": "a",
                "tokens": 8,
                "resident_tokens": 8,
                "pinned_tokens": 8,
                "lease_left_s": 60.0,
                "priority": 3,
                "hits": 0,
                "last_hit_age_s": None,
                "matches": 0,
                "last_match_age_s": None,
                "state": "pinned",
                "released_reason": "",
            }
        ],
        "released": [],
    }


def test_report_tells_the_epoch_pins_and_releases(bench: Bench) -> None:
    bench.send("pin", "a", 8)
    bench.send("pin", "b", 4, lease=10)
    bench.table.record_request([b"\1", b"\2"], 8, now=55.0)
    bench.now = 60.0
    answer = bench.send("report", epoch="")
    assert answer["epoch"] == EPOCH
    assert [(pin["id"], pin["hits"], pin["last_hit_age_s"]) for pin in answer["pins"]] == [
        ("a", 1, 5.0)
    ]
    assert answer["watched"] == [
        {"id": "b", "tokens": 4, "resident_tokens": 4, "matches": 1, "last_match_age_s": 5.0}
    ]
    assert answer["released"] == [{"id": "b", "reason": "LeaseExpired", "tokens": 4, "age_s": 0.0}]


def test_unpin_and_renew_act_before_the_request_runs(bench: Bench) -> None:
    bench.send("pin", "a", 8, lease=10)
    bench.desk.receive("x", bench.wire("renew", "a", 0, [1], lease=99, priority=7), [1], [])
    assert bench.table.pins[0].priority == 7
    bench.desk.receive("y", bench.wire("unpin", "a", 0, [1]), [1], [])
    assert bench.table.pins == ()
    answer = bench.desk.finish("y", [], completed=True)
    assert answer is not None
    (pin,) = answer["pins"]
    assert (pin["state"], pin["released_reason"], pin["pinned_tokens"]) == (
        "released",
        "Unpinned",
        0,
    )
    assert pin["resident_tokens"] == 8


def test_evict_acts_at_once_and_goes_on_watching(bench: Bench) -> None:
    bench.send("pin", "a", 8)
    bench.desk.receive("x", bench.wire("evict", "a", 0, [1]), [1], [])
    assert bench.table.pins == ()
    assert [block.block_hash for block in bench.pool.blocks[1:4]] == [None, None, b"\3"]
    answer = bench.desk.finish("x", [], completed=False)
    assert answer is not None
    (pin,) = answer["pins"]
    assert (pin["state"], pin["released_reason"], pin["resident_tokens"]) == (
        "released",
        "Evicted",
        0,
    )
    assert "watched" not in answer
    assert [(item["id"], item["reason"]) for item in answer["released"]] == [("a", "Evicted")]
    again = bench.send("evict", "a")
    assert (again["ok"], again["pins"][0]["released_reason"]) == (True, "Evicted")
    assert len(again["released"]) == 1
    (watched,) = bench.send("report")["watched"]
    assert (watched["id"], watched["resident_tokens"]) == ("a", 0)


def test_warm_pins_nothing_and_waits_as_a_pin_does(bench: Bench) -> None:
    prompt = list(range(7))
    bench.desk.receive("w", bench.wire("warm", "", 6, prompt), prompt, [b"\1"])
    assert bench.desk.is_warm_up("w")
    answer = bench.desk.finish("w", [b"\1"], completed=True)
    assert answer is not None
    assert (answer["ok"], answer["pins"], answer["blocks_pinned"]) == (True, [], 0)
    bench.desk.receive("w", bench.wire("warm", "", 7, prompt), prompt, [b"\1"])
    assert not bench.desk.is_warm_up("w")
    short = bench.desk.finish("w", [b"\1"], completed=True)
    assert short is not None
    assert short["reason"] == "Malformed"


def test_a_warm_up_takes_no_pins_away(bench: Bench) -> None:
    bench.send("pin", "a", 8)
    prompt, hashes = list(range(77)), [bytes([number]) for number in range(1, 20)]
    bench.desk.receive("w", bench.wire("warm", "", 76, prompt), prompt, hashes)
    assert bench.desk.is_warm_up("w")
    assert bench.desk.is_accepted("w")
    # The token after the last full block needs a block as well.
    prompt, hashes = list(range(81)), [bytes([number]) for number in range(1, 21)]
    bench.desk.receive("x", bench.wire("warm", "", 80, prompt), prompt, hashes)
    assert not bench.desk.is_accepted("x")
    answer = bench.desk.finish("x", hashes, completed=True)
    assert answer is not None
    assert (answer["reason"], answer["blocks_pinned"]) == ("BudgetExceeded", 2)
    assert "19 blocks" in answer["message"]


def test_a_command_without_room_is_answered_before_it_ran(bench: Bench) -> None:
    prompt = list(range(7))
    bench.desk.receive("w", bench.wire("warm", "", 6, prompt), prompt, [b"\1"])
    bench.desk.receive("r", bench.wire("report", "", 0, [1]), [1], [])
    for name, reason in (("w", "BudgetExceeded"), ("r", "")):
        bench.desk.give_up(name)
        answer = bench.desk.finish(name, [], completed=False)
        assert answer is not None
        assert answer["reason"] == reason
        assert not bench.desk.knows(name)
    bench.desk.give_up("unknown")


def test_a_replaced_adapter_takes_its_pins_and_blocks_along(bench: Bench) -> None:
    old, new, other = Adapter("a", 1), Adapter("a", 2), Adapter("b", 7)
    bench.desk.see_adapter(old)
    bench.send("pin", "p", 8, adapter=old)
    assert bench.desk.see_adapter(old) == bench.desk.see_adapter(other) == ()
    assert [pin.id for pin in bench.desk.see_adapter(new)] == ["p"]
    assert bench.pool.blocks[1].block_hash is None
    report = bench.send("report")
    assert [(item["id"], item["reason"]) for item in report["released"]] == [
        ("p", "AdapterChanged")
    ]
    assert report["watched"][0]["id"] == "p"
    # One that was underway with the old weights is refused, however late it ends.
    assert bench.desk.see_adapter(old) == ()
    assert bench.send("pin", "q", 4, adapter=old)["reason"] == "AdapterChanged"


def test_an_adapter_that_is_loaded_in_place_is_not_pinned(bench: Bench) -> None:
    loaded, changed = Adapter("a", 1), Adapter("a", 1, in_place=True)
    bench.desk.see_adapter(loaded)
    bench.send("pin", "p", 8, adapter=loaded)
    assert [pin.id for pin in bench.desk.see_adapter(changed)] == ["p"]
    answer = bench.send("pin", "p", 12, adapter=changed)
    assert (answer["ok"], answer["reason"]) == (False, "AdapterInPlace")
    assert "unload" in answer["message"]


def test_a_pin_acts_only_when_its_request_completed(bench: Bench) -> None:
    bench.send("pin", "a", 8, completed=False)
    assert bench.table.pins == ()
    assert bench.pool.get_num_free_blocks() == 20


@pytest.mark.parametrize(
    ("op", "pin_id", "tokens", "change", "reason"),
    [
        ("unpin", "nobody", 0, {}, "UnknownPin"),
        ("renew", "nobody", 0, {}, "UnknownPin"),
        ("evict", "nobody", 0, {}, "UnknownPin"),
        ("pin", "a", 6, {}, "Malformed"),
        ("pin", "a", 44, {}, "BudgetExceeded"),
    ],
)
def test_refusals_of_genuine_commands_carry_the_numbers(
    bench: Bench, op: str, pin_id: str, tokens: int, change: dict[str, Any], reason: str
) -> None:
    answer = bench.send(op, pin_id, tokens, **change)
    assert (answer["ok"], answer["reason"]) == (False, reason)
    assert answer["message"]
    assert (answer["epoch"], answer["budget_blocks"], answer["pins"]) == (EPOCH, 10, [])
    assert bench.table.pins == ()


def test_blocks_that_are_gone_at_the_end(bench: Bench) -> None:
    bench.pool.blocks[2].block_hash = None
    assert bench.send("pin", "a", 8)["reason"] == "NotResident"
    assert bench.table.blocks_pinned == 0


@pytest.mark.parametrize(
    "change", [{"epoch": "old"}, {"expiry": 1000}, {"counter": 0}, {"v": 9}, {"lease": 0}]
)
def test_a_refused_command_does_nothing_and_learns_nothing(
    bench: Bench, change: dict[str, Any]
) -> None:
    bench.send("pin", "a", 8)
    answer = bench.send("pin", "a", 4, **change)
    assert answer.keys() == {"v", "ok", "reason", "message"}
    assert answer["ok"] is False
    assert len(bench.table.pins[0].hashes) == 2


def test_a_pin_needs_one_token_more(bench: Bench) -> None:
    prompt = list(range(8))
    bench.desk.receive("r", bench.wire("pin", "a", 8, prompt), prompt, [b"\1", b"\2"])
    answer = bench.desk.finish("r", [b"\1", b"\2"], completed=True)
    assert answer is not None
    assert answer["reason"] == "Malformed"


def test_two_in_flight_cannot_exceed_the_budget_together(bench: Bench) -> None:
    hashes = [bytes([number]) for number in range(1, 13)]
    prompt = list(range(25))
    for name in ("a", "b"):
        bench.desk.receive(name, bench.wire("pin", name, 24, prompt), prompt, hashes)
    first = bench.desk.finish("a", hashes[:6], completed=True)
    second = bench.desk.finish("b", hashes[6:], completed=True)
    assert first is not None
    assert second is not None
    assert (first["ok"], second["reason"]) == (True, "BudgetExceeded")
    assert bench.table.blocks_pinned == 6


def test_answers_are_json(bench: Bench) -> None:
    bench.send("pin", "é/日", 8)
    json.dumps(bench.send("report"), ensure_ascii=False).encode()


@given(st.text() | st.integers() | st.none() | st.lists(st.text()) | st.binary())
def test_nothing_that_a_client_sends_raises(argument: object) -> None:
    bench = Bench()
    bench.desk.receive("r", argument, [1], [])
    answer = bench.desk.finish("r", [], completed=True)
    assert answer is not None
    assert answer["ok"] is False


def test_a_flood_of_forged_commands_leaves_genuine_ones_answered(bench: Bench) -> None:
    for number in range(MAX_PENDING + 1):
        bench.desk.receive(f"forged-{number}", "{}", [0], [])
    assert not bench.desk.knows(f"forged-{MAX_PENDING}")
    assert bench.send("pin", "a", 8)["ok"]
    assert bench.send("renew", "a")["ok"]
    forged = bench.desk.finish("forged-0", [], True)
    assert forged is not None
    assert forged["reason"] == "Malformed"
