"""Signing and sending commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from promptprefix.pin_command import PinCommand
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineApi, EngineError
from promptprefix_sidecar.key_file import KeyFileError
from promptprefix_sidecar.pin_commander import MAX_TRIES, PinCommander

KEY = b"k" * 32
WALL = 1_800_000_000.0


class Plugin:
    """Remembers the highest counter, as the plugin does; ``last`` is what it starts from."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        counter = json.loads(body["vllm_xargs"]["promptprefix"])["counter"]
        ok = counter > self.last
        self.last = max(self.last, counter)
        answer = {"v": 1, "ok": ok, "reason": "" if ok else "Replayed", "epoch": "e"}
        return httpx.Response(200, json={"kv_transfer_params": {"promptprefix": answer}})


def commander(plugin: Plugin, key_file: Path) -> PinCommander:
    client = httpx.AsyncClient(
        base_url="http://engine", transport=httpx.MockTransport(plugin.answer)
    )
    return PinCommander(EngineApi(client), key_file, Clock(wall=lambda: WALL))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


async def test_a_pin_sends_the_prefix_and_one_token_more(key_file: Path) -> None:
    plugin = Plugin()
    await commander(plugin, key_file).pin("m", "e", "a#1", [5, 6, 7, 8, 9], 3)
    (body,) = plugin.bodies
    text = body.pop("vllm_xargs")["promptprefix"]
    assert body == {
        "model": "m",
        "prompt": [5, 6, 7, 8, 9],
        "max_tokens": 1,
        "temperature": 0.0,
        "stream": False,
        "n": 1,
    }
    counter = int(WALL * 1000) + 1
    expected = PinCommand(
        op="pin",
        id="a#1",
        epoch="e",
        counter=counter,
        expiry=int(WALL) + 660,
        lease=120,
        priority=3,
        tokens=4,
    )
    assert text == expected.encode(KEY, [5, 6, 7, 8, 9])


async def test_the_counter_rises_over_all_commands(key_file: Path) -> None:
    plugin = Plugin()
    sender = commander(plugin, key_file)
    await sender.report("m")
    await sender.renew("m", "e", "a", 0)
    await sender.unpin("m", "e", "a")
    commands = [json.loads(body["vllm_xargs"]["promptprefix"]) for body in plugin.bodies]
    counters = [command["counter"] for command in commands]
    assert counters == sorted(set(counters))
    assert [(c["op"], c["id"], c["epoch"]) for c in commands] == [
        ("report", "", ""),
        ("renew", "a", "e"),
        ("unpin", "a", "e"),
    ]
    assert all(body["prompt"] == [0] for body in plugin.bodies)


@pytest.mark.parametrize("ahead_ms", [1, 30_000, 3_000_000, 7 * 86_400_000])
async def test_a_clock_that_went_back_is_overcome(key_file: Path, ahead_ms: int) -> None:
    plugin = Plugin(last=int(WALL * 1000) + ahead_ms)
    done = await commander(plugin, key_file).report("m")
    assert done.answer is not None
    assert done.answer.ok


async def test_a_counter_that_can_not_be_reached_ends(key_file: Path) -> None:
    plugin = Plugin(last=2**53)
    done = await commander(plugin, key_file).report("m")
    assert done.answer is not None
    assert done.answer.reason == "Replayed"
    assert len(plugin.bodies) == MAX_TRIES


async def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="can't be read"):
        await commander(Plugin(), tmp_path / "none").report("m")


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(400, json={"message": "secret"}), "HTTP 400"),
        (httpx.Response(200, text="secret"), "can't be read"),
        (
            httpx.Response(200, json={"kv_transfer_params": {"promptprefix": {"ok": "secret"}}}),
            "can't be read",
        ),
    ],
)
async def test_an_engines_error_never_quotes_a_body(
    key_file: Path, response: httpx.Response, words: str
) -> None:
    client = httpx.AsyncClient(
        base_url="http://engine", transport=httpx.MockTransport(lambda _: response)
    )
    sender = PinCommander(EngineApi(client), key_file, Clock())
    with pytest.raises(EngineError, match=words) as caught:
        await sender.report("m")
    assert "secret" not in str(caught.value)


async def test_warm_and_evict_are_commands_of_their_own(key_file: Path) -> None:
    plugin = Plugin()
    sender = commander(plugin, key_file)
    await sender.warm("m", "e", [5, 6, 7], "a salt")
    await sender.evict("m", "e", "a#1")
    warm, evict = plugin.bodies
    assert (warm["prompt"], warm["cache_salt"]) == ([5, 6, 7], "a salt")
    assert (len(evict["prompt"]), "cache_salt" in evict) == (1, False)
    sent = [json.loads(body["vllm_xargs"]["promptprefix"]) for body in plugin.bodies]
    assert [(each["op"], each["id"], each["tokens"]) for each in sent] == [
        ("warm", "", 2),
        ("evict", "a#1", 0),
    ]
    assert "a salt" not in json.dumps(sent)
