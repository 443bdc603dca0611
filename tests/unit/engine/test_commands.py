"""The plugin's side of the command format, without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_vllm.commands import (
    MAX_USED,
    CommandError,
    CommandVerifier,
    command_mac,
    encode,
    mac_input,
    parse,
    token_digest,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "engine_commands.json"
VECTORS: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]
KEY = bytes(range(32))
EPOCH = "5f0c9a7be2d41688"
NOW = 1_000_000
PROMPT = list(range(65))
FIELDS: dict[str, str | int] = {
    "v": 1,
    "op": "pin",
    "id": "a",
    "epoch": EPOCH,
    "counter": 1,
    "expiry": NOW + 60,
    "lease": 60,
    "priority": 0,
    "tokens": 64,
}


def reason_of(text: object, prompt: list[int], verifier: CommandVerifier | None = None) -> str:
    """The refusal's reason, or an empty string for an accepted command."""
    try:
        (verifier or CommandVerifier(KEY, EPOCH)).verify(parse(text), prompt, NOW)
    except CommandError as refused:
        return refused.reason
    return ""


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_golden_vectors(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key_hex"])
    fields, ids = vector["fields"], vector["token_ids"]

    assert token_digest(ids) == vector["token_digest"]
    assert mac_input(fields, ids) == f"{vector['canonical']}\n{vector['token_digest']}".encode()
    assert command_mac(fields, ids, key) == vector["mac"]
    assert encode(fields, ids, key) == vector["wire"]
    command = parse(vector["wire"])
    assert command.fields() == fields
    CommandVerifier(key, fields["epoch"] or "e").verify(command, ids, fields["expiry"] - 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"op": "report", "id": "", "tokens": 0, "lease": 0, "epoch": ""}, ""),
        ({"op": "unpin", "tokens": 0, "lease": 0}, ""),
        ({"op": "renew", "tokens": 0}, ""),
        ({"op": "evict", "tokens": 0, "lease": 0}, ""),
        ({"op": "warm", "id": "", "lease": 0}, ""),
        ({"op": "warm", "id": "", "lease": 0, "tokens": 0}, "Malformed"),
        ({"op": "warm", "lease": 0}, "Malformed"),
        ({"op": "warm", "id": "", "lease": 0, "epoch": ""}, "Malformed"),
        ({"op": "evict"}, "Malformed"),
        ({"op": "evict", "id": "", "tokens": 0}, "Malformed"),
        ({"v": 2}, "UnknownVersion"),
        ({"op": "drop"}, "Malformed"),
        ({"op": "report"}, "Malformed"),
        ({"id": ""}, "Malformed"),
        ({"id": "a\nb"}, "Malformed"),
        ({"id": "\ud800"}, "Malformed"),
        ({"id": "x" * 257}, "Malformed"),
        ({"epoch": ""}, "Malformed"),
        ({"epoch": "0000"}, "WrongEpoch"),
        ({"tokens": 0}, "Malformed"),
        ({"tokens": -32}, "Malformed"),
        ({"lease": 0}, "Malformed"),
        ({"lease": 8 * 86_400}, "Malformed"),
        ({"op": "renew", "tokens": 0, "lease": 0}, "Malformed"),
        ({"op": "unpin"}, "Malformed"),
        ({"counter": -1}, "Malformed"),
        ({"counter": 2**60}, "Malformed"),
        ({"counter": True}, "Malformed"),
        ({"priority": 1.0}, "Malformed"),
        ({"priority": "1"}, "Malformed"),
        ({"id": 7}, "Malformed"),
        ({"expiry": NOW}, "Expired"),
        ({"more": 1}, "Malformed"),
    ],
)
def test_fields(change: dict[str, Any], reason: str) -> None:
    assert reason_of(encode({**FIELDS, **change}, PROMPT, KEY), PROMPT) == reason


@pytest.mark.parametrize("name", [*FIELDS, "mac"])
def test_every_field_is_needed_and_every_field_is_covered(name: str) -> None:
    whole = json.loads(encode(FIELDS, PROMPT, KEY))
    lacking = {key: value for key, value in whole.items() if key != name}
    assert reason_of(json.dumps(lacking), PROMPT) == "Malformed"
    if name in ("v", "op", "epoch", "mac"):
        return
    value = whole[name]
    changed = {**whole, name: value + "x" if isinstance(value, str) else value + 32}
    assert reason_of(json.dumps(changed), PROMPT) == "BadMac"


def test_the_mac_covers_the_prompt() -> None:
    wire = encode(FIELDS, PROMPT, KEY)
    for prompt in ([*PROMPT, 1], PROMPT[:-1], [*PROMPT[:-1], 9]):
        assert reason_of(wire, prompt) == "BadMac"


@pytest.mark.parametrize(
    "text",
    [None, 7, b"{}", [], "", "{", "[]", "null", '"x"', "[" * 100_000, "9" * 5000, "{}"],
    ids=repr,
)
def test_not_a_command(text: object) -> None:
    assert reason_of(text, PROMPT) == "Malformed"


def test_duplicate_fields_are_refused() -> None:
    wire = encode(FIELDS, PROMPT, KEY)
    assert reason_of('{"id":"b",' + wire[1:], PROMPT) == "Malformed"


def test_a_counter_is_used_once() -> None:
    verifier = CommandVerifier(KEY, EPOCH)

    def send(counter: int, **change: str | int) -> str:
        return reason_of(
            encode({**FIELDS, "counter": counter, **change}, PROMPT, KEY), PROMPT, verifier
        )

    assert [send(5), send(5), send(4), send(6)] == ["", "Replayed", "Replayed", ""]
    # A refused command uses nothing up.
    assert [send(9, epoch="other"), send(7)] == ["WrongEpoch", ""]
    # A report for the epoch is no way around it: a copy from a log stays without an answer.
    report: dict[str, str | int] = {"op": "report", "id": "", "epoch": "", "tokens": 0, "lease": 0}
    assert [send(8, **report), send(8, **report)] == ["", "Replayed"]


@given(st.lists(st.integers(0, 40) | st.integers(0, 10_000), max_size=60))
def test_commands_overtake_each_other_but_none_acts_twice(counters: list[int]) -> None:
    verifier = CommandVerifier(KEY, EPOCH)
    taken: set[int] = set()
    for counter in counters:
        reason = reason_of(encode({**FIELDS, "counter": counter}, PROMPT, KEY), PROMPT, verifier)
        fresh = counter not in taken and (not taken or counter > counters[0])
        assert reason == ("" if fresh else "Replayed")
        taken.add(counter)


def test_what_is_forgotten_of_the_counters_stays_used() -> None:
    verifier = CommandVerifier(KEY, EPOCH)

    def send(counter: int) -> str:
        return reason_of(encode({**FIELDS, "counter": counter}, PROMPT, KEY), PROMPT, verifier)

    assert {send(counter) for counter in range(0, 2 * MAX_USED + 200, 2)} == {""}
    assert {send(counter) for counter in range(200)} == {"Replayed"}
    assert [send(201), send(201)] == ["", "Replayed"]


@pytest.mark.parametrize("key", [b"", b"x" * 31])
def test_without_a_key_nothing_is_accepted(key: bytes) -> None:
    wire = encode(FIELDS, PROMPT, key)
    assert reason_of(wire, PROMPT, CommandVerifier(key, EPOCH)) == "NoKey"


@pytest.mark.parametrize("prompt", [[-1], [2**32], ["x"], [1.5]])
def test_a_prompt_that_no_mac_can_cover(prompt: list[Any]) -> None:
    assert reason_of(encode(FIELDS, PROMPT, KEY), prompt) in ("Malformed", "BadMac")


@given(
    st.text(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_no_text_raises_anything_else(text: str) -> None:
    assert reason_of(text, PROMPT)


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "mac"]),
        st.none() | st.integers() | st.text(max_size=9) | st.floats() | st.booleans(),
    )
)
def test_no_change_raises_anything_else(change: dict[str, Any]) -> None:
    reason_of(json.dumps({**json.loads(encode(FIELDS, PROMPT, KEY)), **change}), PROMPT)
