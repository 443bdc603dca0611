"""What a simulated engine is made of; the defaults are those of the real engine under test."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Timing:
    """How long a scheduling step takes. Rates are per simulated second.

    ``speed``: simulated seconds per real second. The defaults take no time at all.
    """

    prefill_tokens_per_s: float = math.inf
    decode_seconds: float = 0.0
    step_seconds: float = 0.0
    speed: float = 1.0

    def seconds(self, prefilled: int, decoded: int) -> float:
        """Return the real seconds of a step; ``decoded`` sequences decode side by side."""
        simulated = self.step_seconds + prefilled / self.prefill_tokens_per_s
        return (simulated + (self.decode_seconds if decoded else 0.0)) / self.speed


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter. ``number`` is vLLM's ``lora_int_id``, kept by one that is loaded in place."""

    name: str
    path: str
    number: int
    in_place: bool = False


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the next ``times`` requests whose path starts with ``path``.

    ``status``: an HTTP error instead of an answer. ``hang``: no answer at all. ``delay_s``: real
    seconds before anything else. ``drop``: the connection breaks.
    """

    path: str = "/"
    status: int = 0
    hang: bool = False
    drop: bool = False
    delay_s: float = 0.0
    times: int = 1


@dataclass(frozen=True)
class SimulatorOptions:
    """One simulated engine. ``blocks`` counts the null block, as vLLM's option does.

    ``max_batched_tokens``: token budget of one step. ``key``: of the pin plugin, which runs unless
    ``plugin`` is off; ``pin_budget`` is its fraction of the blocks. ``start_seconds``: real seconds
    between a start and the first answer. ``events``: KV events are recorded.
    """

    model: str = "demo"
    blocks: int = 128
    block_size: int = 32
    max_model_len: int = 3840
    max_num_seqs: int = 16
    max_batched_tokens: int = 4096
    key: bytes = field(default=b"", repr=False)
    plugin: bool = True
    pin_budget: float = 0.5
    dev_mode: bool = True
    adapters: tuple[Adapter, ...] = ()
    events: bool = False
    topic: str = "kv"
    start_seconds: float = 0.0
    timing: Timing = Timing()
