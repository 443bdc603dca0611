"""Requests that the plugin ends itself, and how vLLM's frontend is told of it.

Ending a request inside vLLM frees it and tells nobody: the frontend has to find a last output
among those of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from promptprefix_vllm.commands import ARGUMENT

_MODULE: Final = "vllm.v1.engine"


@dataclass(frozen=True)
class Ending:
    request: Any
    answer: dict[str, Any] | None


def with_endings(outputs: Any, endings: Sequence[Ending]) -> Any:
    """``outputs``: what vLLM's ``update_from_output`` returned, by the client's index."""
    engine = import_module(_MODULE)
    for ending in endings:
        request = ending.request
        item = engine.EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason(),
            kv_transfer_params=None if ending.answer is None else {ARGUMENT: ending.answer},
        )
        client = getattr(request, "client_index", 0)
        if client not in outputs:
            outputs[client] = engine.EngineCoreOutputs()
        outputs[client].outputs.append(item)
    return outputs
