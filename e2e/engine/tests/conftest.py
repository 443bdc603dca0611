"""Every test runs on both of vLLM's schedulers; the asynchronous one has two steps in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.engine.tests.lab import KEY, Lab, new_scheduler


@pytest.fixture(autouse=True)
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    monkeypatch.setenv("PROMPTPREFIX_KEY_FILE", str(path))
    return path


@pytest.fixture(params=["scheduler", "async scheduler"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async scheduler")


@pytest.fixture
def lab(asynchronous: bool) -> Lab:
    return Lab(new_scheduler(asynchronous=asynchronous), depth=2 if asynchronous else 1)
