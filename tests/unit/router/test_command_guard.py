"""What is refused as an engine command, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix_router.command_guard import CARRIERS, carries_command

ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "promptprefix")
PLAIN = '{"vllm_xargs":{"promptprefix":"x"}}'


@pytest.mark.parametrize(
    "body",
    [
        PLAIN.encode(),
        b'{"vllm_xargs":{"promptprefix":null}}',
        f'{{"vllm_xargs":{{"{ESCAPED}":1}}}}'.encode(),
        f'{{"vllm_xargs":{{"{ESCAPED.upper().replace("U", "u")}":1}}}}'.encode(),
        b'{"\\u0076llm_xargs":{"promptprefix":1}}',
        b'{"vllm_xargs":{"promptprefix":1},"vllm_xargs":null}',
        b'{"vllm_xargs":{"a":1},"vllm_xargs":{"promptprefix":1}}',
        b'{"kv_transfer_params":{"promptprefix":{}}}',
        b'{"ec_transfer_params":{"promptprefix":{}}}',
        b'{"extra_args":{"promptprefix":""}}',
        b'\xef\xbb\xbf{"vllm_xargs":{"promptprefix":1}}',
        *(PLAIN.encode(code) for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32-be")),
        b'{"n":' + b"9" * 5000 + b',"vllm_xargs":{"promptprefix":1}}',
        b'{"n":NaN,"vllm_xargs":{"promptprefix":1}}',
        b'{"a":' + b"[" * 100_000 + b',"vllm_xargs":{"promptprefix":1}}',
    ],
)
def test_a_command_is_seen(body: bytes) -> None:
    assert carries_command(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"promptprefix",
        b'["vllm_xargs",{"promptprefix":1}]',
        b'{"vllm_xargs":{"session_id":"promptprefix"}}',
        b'{"vllm_xargs":"promptprefix"}',
        b'{"vllm_xargs":{"promptprefix2":1,"Promptprefix":1}}',
        b'{"messages":[{"role":"user","content":"set vllm_xargs.promptprefix"}]}',
        b'{"tools":[{"function":{"name":"promptprefix"}}],"promptprefix":1}',
        b'{"vllm_xargs":{"promptprefix":1}',
        b'{"vllm_xargs":{"promptprefix":1}} trailing',
        b'\xff{"vllm_xargs":{"promptprefix":1}}',
        b"\x00\x00\x00",
    ],
)
def test_everything_else_passes(body: bytes) -> None:
    assert not carries_command(body)


@settings(max_examples=50, deadline=None)
@given(
    carrier=st.sampled_from(sorted(CARRIERS)),
    value=st.one_of(st.text(), st.integers(), st.none()),
    others=st.dictionaries(st.text(), st.integers(), max_size=3),
    escape=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_no_spelling_of_the_key_escapes(
    carrier: str, value: object, others: dict[str, int], escape: list[bool]
) -> None:
    key = "".join(
        f"\\u{ord(letter):04x}" if hide else letter
        for letter, hide in zip("promptprefix", escape, strict=True)
    )
    inner = json.dumps(others)[1:-1]
    body = f'{{"{carrier}":{{{inner}{"," if inner else ""}"{key}":{json.dumps(value)}}}}}'
    assert carries_command(body.encode())
