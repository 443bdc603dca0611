"""Fakes that several tests start from."""

from __future__ import annotations

import pytest

from .fake_control import FakeControl
from .fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()
