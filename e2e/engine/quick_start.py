"""vLLM's own API server, with the engine process forked instead of started anew.

vLLM forks its engine by default, but on its CPU platform it always spawns, which imports everything
a second time: 12 of 33 CPU seconds of a start. It spawns there to bind OpenMP threads to cores
before they exist; with one thread and no binding, which is how the tests run, nothing is lost.

Installed into the engine environment as a module, so that it is found wherever that is mounted.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import runpy
from multiprocessing.context import BaseContext

SERVER = "vllm.entrypoints.openai.api_server"
IMPORTED_LATE = ("vllm.entrypoints.launchers.api_server.app_state", "vllm.v1.engine.async_llm")


def _fork() -> BaseContext:
    return multiprocessing.get_context("fork")


def main() -> None:
    """Runs the server with this process's arguments."""
    # Ten thousand modules are made and none is garbage: looking for some takes seconds.
    gc.disable()
    from vllm.utils import system_utils

    system_utils.get_mp_context = _fork
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
