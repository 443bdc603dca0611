"""What the operator of an engine can set, read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from promptprefix_vllm.commands import MIN_KEY_BYTES

KEY_FILE: Final = "PROMPTPREFIX_KEY_FILE"
PIN_BUDGET: Final = "PROMPTPREFIX_PIN_BUDGET"
WARMUP_HOLD: Final = "PROMPTPREFIX_WARMUP_HOLD_SECONDS"
DEFAULT_BUDGET: Final = 0.5
DEFAULT_HOLD_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Settings:
    """key: empty if there is none. budget: fraction of all blocks that pins may hold.

    hold_seconds: how long a warm-up waits behind user requests at most.
    problems: sentences for the log, never with a secret in them.
    """

    key: bytes = field(default=b"", repr=False)
    budget: float = DEFAULT_BUDGET
    hold_seconds: float = DEFAULT_HOLD_SECONDS
    problems: tuple[str, ...] = ()


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    problems: list[str] = []
    key = _read_key(environment.get(KEY_FILE, ""), problems)
    budget = _read_number(environment, PIN_BUDGET, DEFAULT_BUDGET, 1.0, problems)
    hold = _read_number(environment, WARMUP_HOLD, DEFAULT_HOLD_SECONDS, 3600.0, problems)
    return Settings(key=key, budget=budget, hold_seconds=hold, problems=tuple(problems))


def _read_key(path: str, problems: list[str]) -> bytes:
    if not path:
        problems.append(f"{KEY_FILE} is not set: all commands are refused")
        return b""
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        problems.append(f"{KEY_FILE} cannot be read ({error.strerror}): all commands are refused")
        return b""
    if len(key) < MIN_KEY_BYTES:
        problems.append(f"{KEY_FILE} holds under {MIN_KEY_BYTES} bytes: all commands are refused")
        return b""
    return key


def _read_number(
    environment: Mapping[str, str], name: str, default: float, limit: float, problems: list[str]
) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= limit:
        problems.append(f"{name} is not a number from 0 to {limit:g}: using {default:g}")
        return default
    return value
