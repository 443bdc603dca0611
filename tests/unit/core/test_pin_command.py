"""Commands to the engine plugin: core's encoder against the vectors that the plugin verifies."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptprefix.pin_command import COMMAND_VERSION, MIN_KEY_BYTES, PinCommand
from promptprefix.tokens import token_digest

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden/engine_commands.json").read_text()
)["vectors"]

KEY = bytes(range(32))
COMMAND = PinCommand("pin", "ml/p@1", "e1", counter=1, expiry=60, lease=30, priority=5, tokens=2)
TOKENS = (1, 2, 3)


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in VECTORS])
def test_golden_commands(vector: dict[str, Any]) -> None:
    fields = {key: value for key, value in vector["fields"].items() if key != "v"}
    wire = PinCommand(**fields).encode(bytes.fromhex(vector["key_hex"]), vector["token_ids"])
    assert wire == vector["wire"]
    assert token_digest(vector["token_ids"]) == vector["token_digest"]
    assert vector["fields"]["v"] == COMMAND_VERSION


def test_golden_commands_cover_every_operation() -> None:
    assert {vector["fields"]["op"] for vector in VECTORS} == {
        "pin",
        "unpin",
        "renew",
        "report",
        "evict",
        "warm",
    }


def test_mac_is_over_the_whole_command_and_the_prompt() -> None:
    command = json.loads(COMMAND.encode(KEY, TOKENS))
    mac = command.pop("mac")
    text = json.dumps(command, sort_keys=True, separators=(",", ":"))
    signed = f"{text}\n{token_digest(TOKENS)}".encode()
    assert mac == hmac.new(KEY, signed, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"op": "renew"},
        {"id": "ml/q@1"},
        {"epoch": "e2"},
        {"counter": 2},
        {"expiry": 61},
        {"lease": 31},
        {"priority": 6},
        {"tokens": 3},
    ],
)
def test_any_change_of_a_field_changes_the_mac(change: dict[str, Any]) -> None:
    assert mac_of(replace(COMMAND, **change), KEY, TOKENS) != mac_of(COMMAND, KEY, TOKENS)


@pytest.mark.parametrize(
    ("key", "tokens"), [(KEY[::-1], TOKENS), (KEY, TOKENS[::-1]), (KEY, TOKENS[:2]), (KEY, ())]
)
def test_another_key_or_prompt_changes_the_mac(key: bytes, tokens: tuple[int, ...]) -> None:
    assert mac_of(COMMAND, key, tokens) != mac_of(COMMAND, KEY, TOKENS)


def test_short_keys_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at least {MIN_KEY_BYTES} bytes"):
        COMMAND.encode(KEY[:-1], TOKENS)


def mac_of(command: PinCommand, key: bytes, tokens: tuple[int, ...]) -> str:
    """Return the MAC of an encoded command."""
    return str(json.loads(command.encode(key, tokens))["mac"])
