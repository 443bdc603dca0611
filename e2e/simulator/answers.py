"""The shapes of vLLM 0.32's answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.simulator.sim_request import SimRequest

FINGERPRINT = "vllm-0.32.0-simulated"
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def usage(prompts: Sequence[SimRequest], sequences: Sequence[SimRequest]) -> Json:
    """Sum up; with several choices of one prompt it counts once."""
    prompt_tokens = sum(each.num_prompt_tokens for each in prompts)
    completion = sum(len(each.output_token_ids) for each in sequences)
    cached = sum(each.num_cached_tokens or 0 for each in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {
            "cached_tokens": cached,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


def completion(
    name: str, model: str, created: int, sequences: Sequence[SimRequest], use: Json, params: Any,
    *, token_ids: bool,
) -> Json:  # fmt: skip
    """Answer /v1/completions."""
    choices = [
        {
            "index": index,
            "text": each.output_text,
            "logprobs": None,
            "finish_reason": each.status.finish_reason,
            "stop_reason": each.stop_reason,
            "token_ids": each.output_token_ids if token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
        for index, each in enumerate(sequences)
    ]
    return {
        **_head(name, "text_completion", model, created),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": use,
        "kv_transfer_params": params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chat(
    name: str, model: str, created: int, sequences: Sequence[SimRequest], use: Json, params: Any,
    *, token_ids: bool,
) -> Json:  # fmt: skip
    """Answer /v1/chat/completions."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": each.output_text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": each.status.finish_reason,
            "stop_reason": each.stop_reason,
            "token_ids": each.output_token_ids if token_ids else None,
        }
        for index, each in enumerate(sequences)
    ]
    return {
        **_head(name, "chat.completion", model, created),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": use,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": params,
    }


def role_chunk(name: str, model: str, created: int, index: int) -> bytes:
    """Open a choice of a streamed chat."""
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return event({**_head(name, "chat.completion.chunk", model, created), "choices": [choice]})


def text_chunk(
    name: str, model: str, created: int, index: int, text: str, ended: SimRequest | None,
    *, is_chat: bool, last: bool,
) -> bytes:  # fmt: skip
    """Tell one token; ``ended`` is the sequence if it is its last one, ``last`` of the stream."""
    content: Json = {"delta": {"content": text}} if is_chat else {"text": text}
    choice = {
        "index": index,
        **content,
        "logprobs": None,
        "finish_reason": ended.status.finish_reason if ended is not None else None,
        "stop_reason": ended.stop_reason if ended is not None else None,
        "token_ids": None,
    }
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    closing = {"system_fingerprint": FINGERPRINT} if last else {}
    return event({**_head(name, kind, model, created), "choices": [choice], **closing})


def usage_chunk(name: str, model: str, created: int, use: Json, *, is_chat: bool) -> bytes:
    """Close a stream whose client asked for the usage."""
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return event(
        {
            **_head(name, kind, model, created),
            "choices": [],
            "usage": use,
            "system_fingerprint": FINGERPRINT,
        }
    )


def event(body: Json) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _head(name: str, kind: str, model: str, created: int) -> Json:
    return {"id": name, "object": kind, "created": created, "model": model}


def models(core_models: Sequence[tuple[str, str, str | None, int | None]], created: int) -> Json:
    """Answer /v1/models: name, root, parent and longest sequence of each."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": longest,
                "permission": [],
            }
            for name, root, parent, longest in core_models
        ],
    }
