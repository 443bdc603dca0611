"""Pins in a live vLLM server with a model of sliding windows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e.engine.client import EngineClient
from e2e.engine.environment import ensure_environment
from e2e.engine.server import BLOCK_SIZE, EngineOptions, RunningEngine, running_engine
from e2e.engine.token_prompts import tokens
from e2e.engine.window_model import WINDOW, ensure_window_model

pytestmark = pytest.mark.timeout(900)

BLOCKS = 20
HEAD = BLOCKS * BLOCK_SIZE


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def survives_noise(engine: RunningEngine) -> int:
    """Pins, presses, unpins and presses again; returns how many blocks the pin held."""
    client = EngineClient(engine)
    client.learn_epoch()
    prefix = tokens(1, HEAD + 1)
    answer = client.command("pin", "kept", prefix)
    assert answer["ok"], answer
    for number in range(12):
        client.complete(tokens(100 + number, 1600), max_tokens=8)
    chat = [*prefix[:HEAD], *tokens(3, 40)]
    assert client.cached_tokens(chat) == HEAD
    assert client.complete(chat, max_tokens=40)["usage"]["completion_tokens"] == 40
    (pin,) = client.command("report")["pins"]
    assert (pin["hits"], pin["pinned_tokens"]) == (2, HEAD)
    assert client.command("unpin", "kept")["blocks_pinned"] == 0
    for number in range(12):
        client.complete(tokens(200 + number, 1600), max_tokens=8)
    assert client.cached_tokens(chat) == 0
    assert client.command("pin", "kept", prefix)["ok"]
    assert client.command("evict", "kept")["ok"]
    assert client.cached_tokens(chat) == 0
    client.close()
    return int(answer["blocks_pinned"])


@pytest.fixture(scope="module")
def window_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_window_model(
        ensure_environment(tell).python, tmp_path_factory.mktemp("model") / "windows"
    )


def test_a_model_with_sliding_windows(window_model: Path) -> None:
    with running_engine(tell, EngineOptions(model=window_model, blocks=400)) as engine:
        held = survives_noise(engine)
    # One group of full attention; each group of windows holds what a window needs.
    assert held >= BLOCKS
    assert (held - BLOCKS) % (WINDOW // BLOCK_SIZE) == 0
