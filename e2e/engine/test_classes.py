"""Runs the suite that needs vLLM's own classes, in the engine environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cache import cache_root
from e2e.engine.environment import ensure_environment
from e2e.engine.model import ensure_model
from e2e.engine.server import PLUGIN, engine_environment

SUITE = Path(__file__).parent / "tests"


@pytest.mark.timeout(1800)
def test_plugin_on_vllms_own_classes(tmp_path: Path) -> None:
    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    environment = ensure_environment(progress)
    model = ensure_model(environment.python, cache_root(), progress)
    variables = engine_environment(
        site_packages=str(environment.site_packages),
        plugin=str(PLUGIN),
        vllm_cache=str(environment.vllm_cache),
        home=str(tmp_path),
    )
    done = subprocess.run(
        [environment.python, "-m", "pytest", "-q", SUITE, "-c", SUITE / "pytest.ini"],
        env={**variables, "ENGINE_MODEL": str(model)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:]
