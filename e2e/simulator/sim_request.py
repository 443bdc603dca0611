"""One sequence on its way through the engine, with the chained hashes of its full blocks."""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from e2e.simulator.options import Adapter


class RequestStatus(enum.Enum):
    """Names as vLLM's; the pin plugin tells by them what completed."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()

    @property
    def finish_reason(self) -> str | None:
        """Return what the API calls it."""
        return _REASONS.get(self)


_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
}


@dataclass(frozen=True)
class LoraRequest:
    """An adapter as vLLM's requests carry it."""

    lora_name: str
    lora_path: str
    lora_int_id: int
    load_inplace: bool = False

    @classmethod
    def of(cls, adapter: Adapter | None) -> LoraRequest | None:
        """Return the request's adapter, None for the base model."""
        return None if adapter is None else cls(*astuple(adapter))


@dataclass(frozen=True)
class SamplingParams:
    """``extra_args`` is what the client sent as ``vllm_xargs``."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    extra_args: dict[str, Any] | None = None


@dataclass(eq=False)
class SimRequest:
    """``num_computed_tokens`` counts what is scheduled; ``num_cached_tokens`` what was found."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_size: int
    cache_salt: str | None = None
    lora_request: LoraRequest | None = None
    arrived: float = 0.0
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int | None = None
    output_token_ids: list[int] = field(default_factory=list)
    output_text: str = ""
    stop_reason: str | int | None = None
    first_token_at: float | None = None
    block_hashes: list[bytes] = field(default_factory=list)
    all_token_ids: list[int] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        self.all_token_ids = list(self.prompt_token_ids)
        self._extend_hashes()
        tail = struct.pack(f"<{len(self.prompt_token_ids)}I", *self.prompt_token_ids)
        self.seed = hashlib.sha256(tail).digest()[0]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status.finish_reason is not None

    @property
    def reports_cached(self) -> bool:
        """Whether KV events tell of the cached blocks that it uses, as its client asked for."""
        asked = (self.sampling_params.extra_args or {}).get("kv_cache_report_mode")
        return asked == "full"

    def append_output(self, token_id: int) -> None:
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        self._extend_hashes()

    def extra_keys(self, block: int) -> tuple[str, ...] | None:
        """Return what besides tokens goes into a block's hash: adapter, and at first the salt."""
        keys: list[str] = []
        if self.lora_request is not None:
            keys.append(self.lora_request.lora_name)
        if block == 0 and self.cache_salt:
            keys.append(self.cache_salt)
        return tuple(keys) or None

    def _extend_hashes(self) -> None:
        parent = self.block_hashes[-1] if self.block_hashes else b""
        size = self.block_size
        for block in range(len(self.block_hashes), len(self.all_token_ids) // size):
            ids: Sequence[int] = self.all_token_ids[block * size : (block + 1) * size]
            parent = self._hash(parent, ids, block)
            self.block_hashes.append(parent)

    def _hash(self, parent: bytes, ids: Sequence[int], block: int) -> bytes:
        digest = hashlib.sha256(parent)
        digest.update(struct.pack(f"<{len(ids)}I", *ids))
        if self.lora_request is not None:
            digest.update(f"lora\0{self.lora_request.lora_name}\0".encode())
            digest.update(self.lora_request.lora_path.encode())
        if block == 0 and self.cache_salt:
            digest.update(f"salt\0{self.cache_salt}".encode())
        return digest.digest()
