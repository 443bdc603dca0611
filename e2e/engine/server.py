"""Starts and stops a real vLLM server on loopback, and says how to start one elsewhere.

``engine_arguments`` and ``engine_environment`` are data: manifests of the end-to-end cluster use
the same, so what the tests prove is what the cluster runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from e2e.cache import cache_root
from e2e.engine.environment import QUICK_START_MODULE, ensure_environment
from e2e.engine.model import ensure_model

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "engine"
SCHEDULER = "promptprefix_vllm.scheduler.scheduler_class"
SERVED_MODEL = "demo"
BLOCK_SIZE = 32
BLOCKS = 128
MAX_MODEL_LEN = 3840
START_SECONDS = 240.0
STOP_SECONDS = 20.0
LOG_TAIL_CHARS = 4000

Progress = Callable[[str], None]


class EngineStartError(RuntimeError):
    """The server did not become ready; the message ends with its log."""


@dataclass(frozen=True)
class EngineOptions:
    """blocks: how many KV blocks the cache has; small, so that tests can press on it.

    fork: start the engine process quickly (see ``quick_start``).
    model: another than the tiny Llama.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    blocks: int = BLOCKS
    plugin: bool = True
    fork: bool = True
    events_endpoint: str = ""
    chat_template: str = ""
    extra: Sequence[str] = ()
    model: Path | None = None


def engine_arguments(model: str, options: EngineOptions) -> list[str]:
    """Everything after the interpreter, for this machine or a container's command."""
    arguments = [
        "-m",
        QUICK_START_MODULE if options.fork else "vllm.entrypoints.openai.api_server",
        *("--model", model),
        *("--served-model-name", SERVED_MODEL),
        *("--host", options.host, "--port", str(options.port)),
        *("--dtype", "float32"),
        *("--block-size", str(BLOCK_SIZE)),
        *("--num-gpu-blocks-override", str(options.blocks)),
        *("--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-seqs", "16"),
        "--enforce-eager",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        # Clients send tools; and a request with tool_choice "none" declares no tools.
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        "--exclude-tools-when-tool-choice-none",
        # The model runs in the engine's own process: one import of vLLM less at every start.
        "--distributed-executor-backend",
        "vllm.v1.executor.uniproc_executor.UniProcExecutor",
        *("--disable-access-log-for-endpoints", "/health,/metrics"),
    ]
    if options.plugin:
        arguments += ["--scheduler-cls", SCHEDULER]
    if options.events_endpoint:
        events = (
            '{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv",'
            f'"endpoint":"{options.events_endpoint}"}}'
        )
        arguments += ["--kv-events-config", events]
    if options.chat_template:
        arguments += ["--chat-template", options.chat_template]
    return [*arguments, *options.extra]


def engine_environment(
    site_packages: str, plugin: str, vllm_cache: str, home: str, key_file: str = ""
) -> dict[str, str]:
    """The server's whole environment; besides /tmp, ``home`` is the only folder it writes to."""
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        # torch asks for the user's name, which a container's user id may not have.
        "USER": "engine",
        "PYTHONPATH": f"{site_packages}:{plugin}" if plugin else site_packages,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": vllm_cache,
        "VLLM_CONFIG_ROOT": f"{home}/vllm-config",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor",
        "TRITON_CACHE_DIR": f"{home}/triton",
    }
    if key_file:
        variables["PROMPTPREFIX_KEY_FILE"] = key_file
    return variables


@dataclass(frozen=True)
class RunningEngine:
    """url: base address. key: signs commands. log: the server's output. started_in: seconds."""

    url: str
    pid: int
    log: Path
    model: Path
    events_endpoint: str
    started_in: float
    key: bytes = field(repr=False)


@contextlib.contextmanager
def running_engine(
    progress: Progress,
    options: EngineOptions | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[RunningEngine]:
    """A ready server on a free loopback port; gone when the block ends, whatever happens in it."""
    environment = ensure_environment(progress)
    wanted = options or EngineOptions()
    model = wanted.model or ensure_model(environment.python, cache_root(), progress)
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        folder = Path(name)
        key = secrets.token_bytes(32)
        (folder / "key").write_bytes(key)
        chosen = replace(
            wanted,
            host="127.0.0.1",
            port=free_port(),
            events_endpoint=wanted.events_endpoint or f"ipc://{folder}/events",
        )
        log = folder / "log"
        url = f"http://127.0.0.1:{chosen.port}"
        complete = engine_environment(
            site_packages=str(environment.site_packages),
            plugin=str(PLUGIN) if chosen.plugin else "",
            vllm_cache=str(environment.vllm_cache),
            home=str(folder),
            key_file=str(folder / "key"),
        )
        command = [str(environment.python), *engine_arguments(str(model), chosen)]
        started = time.monotonic()
        with running_server(command, {**complete, **(variables or {})}, url, log, progress) as pid:
            yield RunningEngine(
                url=url,
                pid=pid,
                log=log,
                model=model,
                events_endpoint=chosen.events_endpoint,
                started_in=time.monotonic() - started,
                key=key,
            )


@contextlib.contextmanager
def running_server(
    command: Sequence[str], variables: Mapping[str, str], url: str, log: Path, progress: Progress
) -> Iterator[int]:
    """The process id of a ready server, whose whole environment is ``variables``."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its own group, so that the engine process goes with the server.
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, url, log, progress)
        yield process.pid
    finally:
        _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, progress: Progress
) -> None:
    started = time.monotonic()
    told = started
    while True:
        now = time.monotonic()
        if process.poll() is not None:
            raise EngineStartError(f"the engine ended with {process.returncode}:\n{_tail(log)}")
        if now - started > START_SECONDS:
            raise EngineStartError(f"not ready after {START_SECONDS:.0f} s:\n{_tail(log)}")
        if _answers(url):
            progress(f"engine ready after {now - started:.0f} s")
            return
        if now - told > 15:
            told = now
            progress(f"engine starting: {now - started:.0f} s")
        time.sleep(0.25)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server, then whatever of its process group outlives it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
