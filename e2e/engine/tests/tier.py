"""A KV connector that keeps finished requests' blocks elsewhere: later loads, later frees.

Its transfers end when the test says so; vLLM's scheduler does everything else.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.outputs import KVConnectorOutput

from e2e.engine.tests.lab import SIZE, Lab


class LateTier(KVConnectorBase_V1):  # type: ignore[misc]
    """sending and loading: requests whose blocks a transfer reads or writes now."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.stored: set[bytes] = set()
        self.sending: list[str] = []
        self.loading: list[str] = []

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        known = 0
        for digest in request.block_hashes:
            if digest not in self.stored:
                break
            known += SIZE
        external = min(known, request.num_tokens - 1) // SIZE * SIZE - num_computed_tokens
        return max(0, external), external > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.loading.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Any]:
        if not block_ids or request.request_id in self.loading:
            return False, None
        self.stored.update(request.block_hashes)
        self.sending.append(request.request_id)
        return True, {"theirs": True}

    def reset_cache(self) -> bool:
        self.stored.clear()
        return True

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class TierLab(Lab):
    """Every step's results end the oldest transfer of each kind."""

    hold: bool = False

    @property
    def tier(self) -> LateTier:
        tier: LateTier = self.scheduler.connector
        return tier

    def transfers(self) -> KVConnectorOutput | None:
        if self.hold:
            return None
        sent, loaded = (
            {names.pop(0)} if names else set() for names in (self.tier.sending, self.tier.loading)
        )
        return KVConnectorOutput(finished_sending=sent, finished_recving=loaded)
