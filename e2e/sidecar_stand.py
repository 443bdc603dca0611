"""A live vLLM and a sidecar beside it, as processes on loopback that can be killed and started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from e2e.cache import cache_root
from e2e.engine.environment import ensure_environment
from e2e.engine.model import ensure_model
from e2e.engine.server import (
    PLUGIN,
    EngineOptions,
    engine_arguments,
    engine_environment,
    free_port,
)
from e2e.exposition import total

START_S = 240.0


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Engine:
    """A vLLM server that can be killed and started again, as a container is by the kubelet."""

    folder: Path
    plugin: bool
    port: int
    extra: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = ensure_environment(tell)
        model = ensure_model(environment.python, cache_root(), tell)
        variables = engine_environment(
            site_packages=str(environment.site_packages),
            plugin=str(PLUGIN) if self.plugin else "",
            vllm_cache=str(environment.vllm_cache),
            home=str(self.folder),
            key_file=str(self.folder / "key"),
        )
        options = EngineOptions(port=self.port, plugin=self.plugin, extra=self.extra)
        with (self.folder / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(
                [environment.python, *engine_arguments(str(model), options)],
                env={**variables, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Control(Protocol):
    """Where a sidecar finds its operator, and by what it proves who it is."""

    @property
    def url(self) -> str: ...

    @property
    def ca_file(self) -> Path: ...

    @property
    def token_file(self) -> Path: ...


def start_sidecar(
    folder: Path, operator: Control, engine: Engine, **more: str
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process; its settings are quick ones. Return it with its port."""
    port = free_port()
    variables = {
        "PROMPTPREFIX_CONTROL_URL": operator.url,
        "PROMPTPREFIX_CA_FILE": str(operator.ca_file),
        "PROMPTPREFIX_TOKEN_FILE": str(operator.token_file),
        "PROMPTPREFIX_KEY_FILE": str(engine.folder / "key"),
        "PROMPTPREFIX_LATCH_FILE": str(folder / "latch"),
        "PROMPTPREFIX_ENGINE_URL": engine.url,
        "PROMPTPREFIX_POD_IP": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_HOST": "127.0.0.1",
        "PROMPTPREFIX_LISTEN_PORT": str(port),
        "PROMPTPREFIX_PROBE_INTERVAL_S": "0.5",
        "PROMPTPREFIX_REPORT_INTERVAL_S": "1",
        "PROMPTPREFIX_LEASE_S": "60",
        "PROMPTPREFIX_BLOCKS_PORT": "0",
        **more,
    }
    with (folder / "sidecar.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "promptprefix_sidecar"],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return process, port


async def sidecar_metric(port: int, name: str, /, **labels: str) -> float:
    """Return the sum of the sidecar's series of that name and these labels."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return total(page, f"promptprefix_sidecar_{name}", **labels)


@contextlib.contextmanager
def engine_in(
    folder: Path, *, plugin: bool, extra: Sequence[str] = (), **variables: str
) -> Iterator[Engine]:
    """Start an engine with more arguments and variables; it is being started when this returns."""
    init = subprocess.run(
        [sys.executable, "-m", "promptprefix_sidecar", "init-key"],
        env={"PROMPTPREFIX_KEY_FILE": str(folder / "key")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert init.returncode == 0, init.stderr
    engine = Engine(folder, plugin, free_port(), extra, variables)
    engine.start()
    try:
        yield engine
    finally:
        engine.kill()
