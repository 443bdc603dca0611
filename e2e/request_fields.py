"""What each field of vLLM's requests means for the tokens before the first user turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptprefix.request import Cause
from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape

OWN_TOKENS = {"prompt_token_ids": [1, 2]}


@dataclass(frozen=True)
class Fields:
    """The fields of one API, sorted by what they do.

    source, model: the module and the class that declare them in vLLM.
    identity: what a fingerprint is made of, and the salt. free: a value that changes nothing.
    undeclared: a value that makes a request undeclared, and why.
    """

    shape: Shape
    source: str
    model: str
    identity: frozenset[str]
    free: Mapping[str, Any]
    undeclared: Mapping[str, tuple[Any, Cause]]


_ANY: Mapping[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.9,
    "top_k": 5,
    "stream": True,
    "watermarking": True,
    "mm_payload": "none",
    "return_mm_kwargs": False,
    "ec_transfer_params": {"prompt_token_ids": [1]},
    "vllm_xargs": {"a": 1},
}
_OPENAI: Mapping[str, Any] = {
    "logit_bias": {"1": 1},
    "top_logprobs": 1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.1,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["x"],
    "stop_token_ids": [1],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "structured_outputs": {"choice": ["a"]},
    "parallel_tool_calls": False,
    "include_reasoning": False,
    "user": "me",
    "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"a": 1},
    "priority": 1,
    "request_id": "r",
    "session_id": "s",
}

FIELDS = (
    Fields(
        CHAT,
        "entrypoints/openai/chat_completion/protocol.py",
        "ChatCompletionRequest",
        frozenset(
            {
                "model",
                "messages",
                "tools",
                "tool_choice",
                "reasoning_effort",
                "chat_template_kwargs",
                "cache_salt",
            }
        ),
        free={
            **_ANY,
            **_OPENAI,
            "logprobs": True,
            "max_tokens": 1,
            "max_completion_tokens": 1,
            "n": 2,
            "response_format": {"type": "json_object"},
            "stream_options": {"include_usage": True},
            "thinking_token_budget": 9,
            "use_beam_search": True,
            "length_penalty": 0.5,
            "min_tokens": 1,
            "spaces_between_special_tokens": False,
            "truncation_side": "right",
            "logprob_token_ids": [1],
            "allowed_token_ids": [1],
            "bad_words": ["x"],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
            "routed_experts_prompt_start": 1,
            "return_token_offsets": True,
            "return_prompt_text": True,
            "repetition_detection": {},
            "stream_interval": 2,
        },
        undeclared={
            "chat_template": ("{{ messages }}", Cause.OWN_TEMPLATE),
            "documents": ([{"text": "x"}], Cause.OWN_TEMPLATE),
            "add_special_tokens": (True, Cause.SPECIAL_TOKENS),
            "truncate_prompt_tokens": (-1, Cause.TRUNCATED),
            "prompt_logprobs": (0, Cause.SKIPS_CACHE),
            "echo": (True, Cause.SKIPS_CACHE),
            "kv_transfer_params": (OWN_TOKENS, Cause.OWN_TOKENS),
        },
    ),
    Fields(
        MESSAGES,
        "entrypoints/anthropic/protocol.py",
        "AnthropicMessagesRequest",
        frozenset(
            {
                "model",
                "system",
                "messages",
                "tools",
                "tool_choice",
                "output_config",
                "chat_template_kwargs",
                "cache_salt",
            }
        ),
        free={**_ANY, "max_tokens": 1, "metadata": {"user_id": "u"}, "stop_sequences": ["x"]},
        undeclared={
            "thinking": ({"type": "disabled"}, Cause.REASONING),
            "kv_transfer_params": (OWN_TOKENS, Cause.OWN_TOKENS),
        },
    ),
    Fields(
        RESPONSES,
        "entrypoints/openai/responses/protocol.py",
        "ResponsesRequest",
        frozenset(
            {
                "model",
                "instructions",
                "input",
                "tools",
                "tool_choice",
                "reasoning",
                "chat_template_kwargs",
                "cache_salt",
            }
        ),
        free={
            **_ANY,
            **_OPENAI,
            "background": True,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": 1,
            "max_tool_calls": 1,
            "metadata": {"a": "b"},
            "service_tier": "flex",
            "store": False,
            "text": {"format": {"type": "json_object"}},
            "prompt_cache_key": "k",
            "enable_response_messages": True,
        },
        undeclared={
            "previous_response_id": ("resp_1", Cause.STORED_CONTEXT),
            "previous_input_messages": ([{}], Cause.STORED_CONTEXT),
            "prompt": ({"id": "p"}, Cause.STORED_CONTEXT),
            "truncation": ("auto", Cause.TRUNCATED),
            "kv_transfer_params": (OWN_TOKENS, Cause.OWN_TOKENS),
        },
    ),
)
