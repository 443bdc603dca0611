"""Runs the contract of plugin and sidecar on released versions of vLLM and prints a table.

``python -m e2e.engine.versions [VERSION …]``; without versions, all that `releases` lists. The
status is 0 if every version starts and serves, and pins on all that are not known to run without.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import ValidationError

from e2e.engine.client import EngineClient
from e2e.engine.releases import RELEASES, Installed, Release, ReleaseBuildError, ensure_release
from e2e.engine.server import (
    BLOCK_SIZE,
    BLOCKS,
    MAX_MODEL_LEN,
    PLUGIN,
    SCHEDULER,
    SERVED_MODEL,
    EngineStartError,
    RunningEngine,
    engine_environment,
    free_port,
    running_server,
)
from e2e.engine.token_prompts import tokens
from promptprefix_sidecar.engine_api import EngineApi, EngineError

HEAD = 20 * BLOCK_SIZE
FAILED = "fails"
_BROKEN = (AssertionError, KeyError, TypeError, httpx.HTTPError, EngineError, ValidationError)

Check = Callable[[EngineClient], None]


@dataclass
class Row:
    """What was seen of one release. pins: ``hard``, or why there are none."""

    version: str
    started: str = ""
    pins: str = ""
    checks: dict[str, str] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return self.started.endswith("s") and FAILED not in self.checks.values()


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def chat(seed: int, turn: int) -> list[int]:
    return [*tokens(seed, HEAD), *tokens(turn, 40)]


def noise(client: EngineClient) -> None:
    """Three times the cache."""
    for number in range(9):
        client.complete(tokens(1000 + number, 1600), max_tokens=4)


def pin_under_noise(client: EngineClient) -> None:
    assert client.command("pin", "kept", tokens(1, HEAD + 1))["ok"]
    noise(client)
    assert client.cached_tokens(chat(1, 50)) == HEAD
    (pin,) = client.command("report")["pins"]
    assert (pin["hits"], pin["matches"], pin["pinned_tokens"]) == (1, 1, HEAD)


def unpin(client: EngineClient) -> None:
    assert client.command("unpin", "kept")["pins"][0]["state"] == "released"
    noise(client)
    assert client.cached_tokens(chat(1, 51)) == 0
    (watched,) = client.command("report")["watched"]
    assert watched["matches"] == 2


def evict(client: EngineClient) -> None:
    assert client.command("pin", "gone", tokens(2, HEAD + 1))["ok"]
    assert client.command("evict", "gone")["ok"]
    assert client.cached_tokens(chat(2, 52)) == 0


def warm(client: EngineClient) -> None:
    assert client.command("warm", "", tokens(3, HEAD + 1))["blocks_pinned"] == 0
    assert client.cached_tokens(chat(3, 53)) == HEAD


def valve(client: EngineClient) -> None:
    """A prompt that is larger than what pins leave takes the pin's blocks."""
    assert client.command("pin", "low", tokens(4, 60 * BLOCK_SIZE + 1))["ok"]
    client.complete(tokens(5, 100 * BLOCK_SIZE))
    released = {each["id"]: each["reason"] for each in client.command("report")["released"]}
    assert released["low"] == "PressureValve"


def salts(client: EngineClient) -> None:
    one, two = {"cache_salt": "one"}, {"cache_salt": "two"}
    assert client.command("pin", "salted", tokens(6, HEAD + 1), request=one)["ok"]
    assert client.cached_tokens(chat(6, 54), **one) == HEAD
    assert client.cached_tokens(chat(6, 55), **two) == 0
    client.command("evict", "salted")


PLUGIN_CHECKS: Mapping[str, Check] = {
    "pin under noise": pin_under_noise,
    "unpin, watched": unpin,
    "evict": evict,
    "warm": warm,
    "pressure valve": valve,
    "salts": salts,
}


def serves(client: EngineClient) -> None:
    assert client.complete(tokens(9, 100), max_tokens=50)["usage"]["completion_tokens"] > 0


def sidecar(client: EngineClient) -> None:
    """Every question that the sidecar asks of an engine, by the sidecar's own client."""
    asyncio.run(_ask(client.url))


async def _ask(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        api = EngineApi(http)
        await api.check_health()
        assert await api.version()
        assert SERVED_MODEL in [model.id for model in await api.models()]
        assert (await api.metrics()).block_size == BLOCK_SIZE
        turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
        assert await api.tokenize_chat({"model": SERVED_MODEL, "messages": turns})
        assert (await api.prefill(SERVED_MODEL, tokens(8, 40))).prompt_tokens == 40


def plugin_mode(client: EngineClient) -> str:
    done = client.complete(
        (1,), vllm_xargs={"promptprefix": client.sign("report", "", 0, (1,), epoch="")}
    )
    answer = (done.get("kv_transfer_params") or {}).get("promptprefix")
    if answer is None:
        return "no answer"
    if not answer["ok"]:
        return str(answer["message"] or answer["reason"])
    client.epoch = answer["epoch"]
    return "hard"


@contextmanager
def running_release(installed: Installed) -> Iterator[RunningEngine]:
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        folder = Path(name)
        key = secrets.token_bytes(32)
        (folder / "key").write_bytes(key)
        port = free_port()
        url, log = f"http://127.0.0.1:{port}", folder / "log"
        variables = engine_environment(
            site_packages=str(installed.site_packages),
            plugin=str(PLUGIN),
            vllm_cache=str(installed.cache),
            home=str(folder),
            key_file=str(folder / "key"),
        )
        command = [
            *(str(installed.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(installed.model), "--served-model-name", SERVED_MODEL),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
            *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", "--enforce-eager"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--scheduler-cls", SCHEDULER),
            *installed.release.extra,
        ]
        started = time.monotonic()
        with running_server(command, variables, url, log, tell) as pid:
            yield RunningEngine(
                url=url,
                pid=pid,
                log=log,
                model=installed.model,
                events_endpoint="",
                started_in=time.monotonic() - started,
                key=key,
            )


def examine(release: Release) -> Row:
    row = Row(release.name)
    try:
        installed = ensure_release(release, tell)
        with running_release(installed) as engine:
            row.started = f"{engine.started_in:.0f} s"
            client = EngineClient(engine)
            row.pins = plugin_mode(client)
            checks = {"serves": serves, "sidecar's questions": sidecar}
            if row.pins == "hard":
                checks |= PLUGIN_CHECKS
            for name, check in checks.items():
                row.checks[name] = _outcome(name, check, client)
            client.close()
    except (EngineStartError, ReleaseBuildError, *_BROKEN) as error:
        tell(f"vLLM {release.version}: {error!r}")
        row.started = row.started or FAILED
        row.pins = row.pins or FAILED
    return row


def _outcome(name: str, check: Check, client: EngineClient) -> str:
    try:
        check(client)
    except _BROKEN as error:
        tell(f"{name}: {error!r}")
        return FAILED
    return "yes"


def table(rows: list[Row]) -> str:
    """A Markdown table; a dash stands for what was not tried."""
    names = ["serves", "sidecar's questions", *PLUGIN_CHECKS]
    lines = [["vLLM", "starts", "pins", *names]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        seen = [row.checks.get(name, "-") for name in names]
        lines.append([row.version, row.started, row.pins, *seen])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: list[str]) -> int:
    known = [release.version for release in RELEASES]
    unknown = [version for version in arguments if version not in known]
    if unknown:
        tell(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return 2
    wanted = [each for each in RELEASES if not arguments or each.version in arguments]
    rows = [examine(release) for release in wanted]
    print(table(rows))
    return 0 if all(row.sound for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
