"""Which class vLLM would schedule with if it were not told to use ours.

Only vLLM 0.32.0 is verified. Other releases choose in other ways, and none of them may keep an
engine from starting: what is not as expected leads to vLLM's plain scheduler.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

_PLAIN: Final = ("vllm.v1.core.sched.scheduler", "vllm.v1.core.scheduler")
# The engine before V1 gives its scheduler positional arguments.
_OLDEST: Final = ("vllm.core.scheduler",)
_ASYNC: Final = ("vllm.v1.core.sched.async_scheduler",)
_DIFFUSION: Final = ("vllm.v1.core.sched.diffusion_scheduler",)
_UNEXPECTED: Final = (AttributeError, ImportError, TypeError, ValueError)


@dataclass(frozen=True)
class Choice:
    """base: vLLM's class. problem: why pins can't work with this vLLM; empty if they may."""

    base: Any
    problem: str = ""


def choose(positional: Sequence[Any], named: Mapping[str, Any]) -> Choice:
    """Choose by the arguments that vLLM gave. Raises ImportError if it has no scheduler at all."""
    if positional or "vllm_config" not in named:
        modules = _OLDEST if positional else _PLAIN
        return Choice(_found("Scheduler", modules), "this vLLM gives its scheduler no vllm_config")
    vllm_config = named["vllm_config"]
    config = getattr(vllm_config, "scheduler_config", None)
    is_async = bool(getattr(config, "async_scheduling", False))
    try:
        if getattr(vllm_config, "diffusion_config", None) is not None:
            name = "DiffusionAsyncScheduler" if is_async else "DiffusionScheduler"
            return Choice(_found(name, _DIFFUSION))
        base = _chosen(config)
    except _UNEXPECTED as error:
        return Choice(_plain(is_async), f"this vLLM chooses its scheduler in another way ({error})")
    if not isinstance(base, type):
        return Choice(_plain(is_async), "this vLLM's choice of a scheduler is no class")
    return Choice(base)


def _chosen(scheduler_config: Any) -> Any:
    config = copy.copy(scheduler_config)
    choose_class = config.get_scheduler_cls
    config.scheduler_cls = None
    return choose_class()


def _plain(is_async: bool) -> Any:
    if is_async:
        try:
            return _found("AsyncScheduler", _ASYNC)
        except ImportError:
            pass
    return _found("Scheduler", _PLAIN)


def _found(name: str, modules: Sequence[str]) -> Any:
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"vLLM has no {name} in {' or '.join(modules)}")
