"""The token-clean head on real tokenizers and chat templates, against user turns of every kind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.engine.environment import ensure_environment
from promptprefix.payload import Payload
from promptprefix.tokens import PROBE_USER_TURNS
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.head import EDGE_USER_TURNS, Head, HeadError
from promptprefix_sidecar.rendering import Renderer, probe_body

pytestmark = pytest.mark.timeout(900)

TOKENIZERS = ("gpt2", "llama3", "metaspace-bpe", "unigram")
_TOOLS = "{% if tools %}\n\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if loop.first %}"
        + _TOOLS
        + "{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    ),
    "gemma": (
        "<s>{% set lead = messages[0].content if messages[0].role == 'system' else '' %}"
        "<start_of_turn>user\n{{ lead }}" + _TOOLS + "\n\n{{ messages[-1].content | trim }}"
        "<end_of_turn>\n<start_of_turn>model\n"
    ),
    "plain": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        + _TOOLS
        + "{{ '\\n' }}{% else %}User:{{ m.content }}\nAssistant:{% endif %}{% endfor %}"
    ),
    "space": (
        "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        + _TOOLS
        + "\n\n{% else %}User: {{ m.content }}\n\nAssistant:{% endif %}{% endfor %}"
    ),
    "inst": (
        "<s>[INST] {% if messages[0].role == 'system' %}{{ messages[0].content }}"
        + _TOOLS
        + "\n\n{% endif %}{{ messages[-1].content }} [/INST]"
    ),
}
TOOLS = (
    '[{"type":"function","function":{"name":"suche","description":"Findet 注文 – schnell 🙂",'
    '"parameters":{"type":"object","properties":{"z":{"minimum":1.0},"a":{"maximum":1e22}}}}}]'
)
WORDS = [
    "Reply",
    "as:",
    "(x)",
    "näive",
    "日本",
    "json()",
    "12345",
    "users'",
    '"quoted"',
    "e.g.",
    "<b>",
    "\t",
    "done\n",
]
USER_TURNS = st.one_of(
    st.text(min_size=1, max_size=12),
    st.text(
        st.sampled_from(" \t\r\n:;()[]{}<>!?.,'\"`-_=+*/\\|#@$%^&~aeinorst019é日🙂\u0301\u200d"),
        max_size=8,
    ),
)


@dataclass
class Tokens:
    """A process with the engine environment's tokenizers; speaks vLLM's ``/tokenize``."""

    process: subprocess.Popen[str]
    tokenizer: str = ""
    template: str = ""

    def tokenize(self, body: dict[str, Any]) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "tokenizer": self.tokenizer,
            "template": self.template,
            "messages": body["messages"],
            "tools": body.get("tools"),
            "options": body.get("chat_template_kwargs", {}),
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ids: list[int] = json.loads(self.process.stdout.readline())
        return ids

    def head(self, payload: Payload, block_size: int) -> Head:
        """Return what the sidecar finds when it asks an engine with this tokenizer."""

        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json={"tokens": self.tokenize(json.loads(request.content))})

        async def ask() -> Head:
            transport = httpx.MockTransport(answer)
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                return await Renderer(EngineApi(client)).head("m", payload, block_size)

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def tokens() -> Iterator[Tokens]:
    environment = ensure_environment(lambda line: print(line, file=sys.stderr, flush=True))
    script = Path(__file__).parent / "engine" / "tokenizers_process.py"
    process = subprocess.Popen(
        [environment.python, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "TOKENIZERS_PARALLELISM": "false"},
    )
    yield Tokens(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    assert process.wait(30) == 0


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_request_begins_with_the_head(tokens: Tokens, tokenizer: str, template: str) -> None:
    tokens.tokenizer, tokens.template = tokenizer, TEMPLATES[template]

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        words=st.lists(st.sampled_from(WORDS), min_size=8, max_size=16),
        tools=st.sampled_from(["[]", TOOLS]),
        block_size=st.sampled_from([4, 16]),
        turns=st.lists(USER_TURNS, min_size=1, max_size=8),
    )
    def check(words: list[str], tools: str, block_size: int, turns: list[str]) -> None:
        payload = Payload(systemInstructions=" ".join(words), toolDefinitions=tools)
        try:
            head = tokens.head(payload, block_size)
        except HeadError:
            return
        for turn in turns:
            request = tokens.tokenize(dict(probe_body("m", payload, turn)))
            assert request[: head.tokens] == head.prompt_ids[:-1], turn

    check()


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama3"])
def test_a_boundary_that_user_turns_split_is_left_out(tokens: Tokens, tokenizer: str) -> None:
    """The template ends in a colon that merges with what follows: at a block's end it must go."""
    tokens.tokenizer, tokens.template = tokenizer, TEMPLATES["plain"]
    found = set()
    for length in range(8, 60):
        payload = Payload(systemInstructions="x " * (length // 2) + "x" * (length % 2))
        plain = tokens.tokenize(dict(probe_body("m", payload, "a")))
        merged = tokens.tokenize(dict(probe_body("m", payload, "(see")))
        shared = next(i for i, (a, b) in enumerate(zip(plain, merged, strict=False)) if a != b)
        if (shared + 1) % 4 == 0:  # the colon is the last token of a block
            head = tokens.head(payload, 4)
            assert head.tokens == shared - 3
            assert merged[: head.tokens] == head.prompt_ids[:-1]
            found.add(length)
    assert found


def test_a_template_that_puts_the_system_text_last_has_no_head(tokens: Tokens) -> None:
    tokens.tokenizer = "gpt2"
    tokens.template = "<s>{{ messages[-1].content }}\n{{ messages[0].content }}"
    with pytest.raises(HeadError, match="mixes system text or tools into the user turn"):
        tokens.head(Payload(systemInstructions="You sort requests. " * 20), 16)


def test_the_probes_differ_in_kind() -> None:
    turns = (*PROBE_USER_TURNS, *EDGE_USER_TURNS)
    assert len(set(turns)) == len(turns)
