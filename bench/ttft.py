"""What users feel of warm-ups, on real vLLM: ``python -m bench.ttft``.

Users ask at a steady rate; in turns nobody warms up, prefixes are warmed as the sidecar does it
(pieces that wait behind users), and as plain requests of whole prefixes. The difference of the 90th
percentiles of the time to the first token is told in prefills of one chunk: as many tokens as the
engine computes in one step. Writes ``build/ttft.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from e2e.engine.client import EngineClient
from e2e.engine.server import BLOCK_SIZE, SERVED_MODEL, EngineOptions, RunningEngine, running_engine
from e2e.engine.token_prompts import tokens
from promptprefix_sidecar.settings import Settings

REPORT = Path("build/ttft.json")
BLOCKS = 512
CHUNK = 2048
"""What vLLM computes in one step at most by default on a CPU, and on small GPUs."""
PIECE: int = Settings.model_fields["warm_chunk_tokens"].default
PREFIX_TOKENS = 3328
USER_TOKENS = 160
USER_SECONDS = 0.5
PERCENTILE = 90

Json = dict[str, Any]
_SEEDS = itertools.count(10_000)


def first_token(http: httpx.Client) -> float:
    """Return the seconds until a new user's first token."""
    body = {
        "model": SERVED_MODEL,
        "prompt": tokens(next(_SEEDS), USER_TOKENS),
        "max_tokens": 4,
        "ignore_eos": True,
        "stream": True,
    }
    begun = time.monotonic()
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        taken = time.monotonic() - begun
        for _ in lines:
            pass
    return taken


def users(http: httpx.Client, seconds: float) -> list[float]:
    """Ask every `USER_SECONDS`, whether or not others still wait; return the times."""
    with ThreadPoolExecutor(32) as pool:
        begun = time.monotonic()
        asked = []
        for number in range(round(seconds / USER_SECONDS)):
            time.sleep(max(0.0, begun + number * USER_SECONDS - time.monotonic()))
            asked.append(pool.submit(first_token, http))
        return [each.result() for each in asked]


def pieces(client: EngineClient) -> None:
    """Warm a new prefix as the sidecar does: in pieces, then pinned, then dropped again."""
    prefix = tokens(next(_SEEDS), PREFIX_TOKENS + 1)
    for end in range(PIECE, PREFIX_TOKENS, PIECE):
        client.command("warm", "", prefix[: end + 1])
    client.command("pin", "warmed", prefix)
    client.command("evict", "warmed")


def plain(client: EngineClient) -> None:
    """Warm a new prefix as an ordinary request."""
    client.complete(tokens(next(_SEEDS), PREFIX_TOKENS + 1))


def warming(
    engine: RunningEngine, warm: Callable[[EngineClient], None] | None, seconds: float,
    measured: Callable[[float], list[float]],
) -> tuple[list[float], int]:  # fmt: skip
    """Return the users' times while somebody warms, and how many prefixes were warmed."""
    stop = threading.Event()
    warmed = 0

    def repeat() -> None:
        nonlocal warmed
        client = EngineClient(engine)
        client.learn_epoch()
        while warm is not None and not stop.is_set():
            warm(client)
            warmed += 1
        client.close()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return measured(seconds), warmed
    finally:
        stop.set()
        thread.join()


def percentile(times: list[float]) -> float:
    """Return the 90th percentile."""
    return statistics.quantiles(times, n=100, method="inclusive")[PERCENTILE - 1]


def chunk_seconds(client: EngineClient) -> float:
    """Return the time of one chunk's prefill on the idle engine: the median of five."""
    times: list[float] = []
    for _ in range(5):
        begun = time.monotonic()
        client.complete(tokens(next(_SEEDS), CHUNK))
        times.append(time.monotonic() - begun)
    return statistics.median(times)


def measure(engine: RunningEngine, rounds: int, seconds: float) -> Json:
    """Take turns, so that whatever else the machine does hits all alike."""
    client = EngineClient(engine)
    chunk = chunk_seconds(client)
    tell(f"a chunk of {CHUNK} tokens takes {chunk:.2f} s")
    kinds: dict[str, Callable[[EngineClient], None] | None] = {
        "no warm-ups": None,
        "pieces behind users": pieces,
        "whole prefixes as plain requests": plain,
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    counts = dict.fromkeys(kinds, 0)
    with httpx.Client(base_url=engine.url, timeout=120) as http:
        for _ in range(rounds):
            for name, warm in kinds.items():
                found, warmed = warming(engine, warm, seconds, lambda s: users(http, s))
                times[name] += found
                counts[name] += warmed
                tell(f"{name}: p90 {percentile(found):.3f} s of {len(found)}, {warmed} warmed")
    client.close()
    base = percentile(times["no warm-ups"])
    return {
        "chunk_tokens": CHUNK,
        "piece_tokens": PIECE,
        "chunk_s": round(chunk, 3),
        "prefix_blocks": PREFIX_TOKENS // BLOCK_SIZE,
        "user_every_s": USER_SECONDS,
        "kinds": {
            name: {
                "users": len(found),
                "prefixes_warmed": counts[name],
                "p50_s": round(statistics.median(found), 3),
                "p90_s": round(percentile(found), 3),
                "p90_over_none_in_chunks": round((percentile(found) - base) / chunk, 3),
            }
            for name, found in times.items()
        },
    }


def tell(line: str) -> None:
    """Say what takes time."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run all turns."""
    parser = argparse.ArgumentParser(prog="bench.ttft", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one turn")
    given = parser.parse_args()
    with running_engine(tell, EngineOptions(blocks=BLOCKS)) as engine:
        report = measure(engine, given.rounds, given.seconds)
    report["load_of_machine"] = round(os.getloadavg()[0], 1)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
