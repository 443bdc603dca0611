"""The engines under contract, started the same way: real vLLM, and the simulated engine."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root
from e2e.engine.adapter import ensure_adapter
from e2e.engine.environment import ensure_environment
from e2e.engine.model import ensure_model
from e2e.engine.server import (
    BLOCK_SIZE,
    BLOCKS,
    MAX_MODEL_LEN,
    EngineOptions,
    RunningEngine,
    running_engine,
)

ADAPTER = "style"
START_SECONDS = 30.0


@dataclass(frozen=True)
class Subject:
    """``adapter`` and ``other_adapter`` are folders; the first is served as `ADAPTER`."""

    kind: str
    engine: RunningEngine
    events: str
    replay: str
    adapter: Path
    other_adapter: Path


def tell(line: str) -> None:
    """Say what takes time."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def started(kind: str) -> Iterator[Subject]:
    """Run an engine of ``kind``: ``vllm`` or ``simulator``."""
    with tempfile.TemporaryDirectory(prefix="contract-") as name:
        folder = Path(name)
        events, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        adapters = [folder / "adapter-1", folder / "adapter-2"]
        run = _vllm if kind == "vllm" else _simulator
        with run(folder, events, replay, adapters) as engine:
            yield Subject(kind, engine, events, replay, *adapters)


@contextlib.contextmanager
def _vllm(
    folder: Path, events: str, replay: str, adapters: Sequence[Path]
) -> Iterator[RunningEngine]:
    environment = ensure_environment(tell)
    ensure_model(environment.python, cache_root(), tell)
    for seed, adapter in enumerate(adapters):
        ensure_adapter(environment.python, adapter, seed)
    published = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": "kv",
        "endpoint": events,
        "replay_endpoint": replay,
    }
    options = EngineOptions(
        extra=(
            *("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"),
            *("--lora-modules", f"{ADAPTER}={adapters[0]}"),
            *("--kv-events-config", json.dumps(published)),
        )
    )
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with running_engine(tell, options, variables) as engine:
        yield engine


@contextlib.contextmanager
def _simulator(
    folder: Path, events: str, replay: str, adapters: Sequence[Path]
) -> Iterator[RunningEngine]:
    for adapter in adapters:
        adapter.mkdir()
    key = secrets.token_bytes(32)
    (folder / "key").write_bytes(key)
    begun = time.monotonic()
    arguments = [
        *("--port", "0", "--block-size", str(BLOCK_SIZE)),
        *("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", str(MAX_MODEL_LEN)),
        *("--key-file", str(folder / "key"), "--lora-modules", f"{ADAPTER}={adapters[0]}"),
        *("--events-endpoint", events, "--replay-endpoint", replay),
        *("--prefill-tokens-per-s", "40000", "--decode-seconds", "0.002"),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "e2e.simulator", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("simulated engine on "), line
            yield RunningEngine(
                url=line.split()[-1],
                pid=process.pid,
                log=folder / "log",
                model=folder,
                events_endpoint=events,
                started_in=time.monotonic() - begun,
                key=key,
            )
        finally:
            process.terminate()
            process.wait(START_SECONDS)
