"""What the chat templates promise about the head that all conversations share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

TEMPLATES = sorted((Path(__file__).parents[1] / "templates").glob("*.jinja"))
SYSTEM = "You are a careful clerk. " * 20
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(os.environ["ENGINE_MODEL"])


def render(tokenizer: Any, path: Path, user: str, tools: Any, **options: Any) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
        tools=tools,
        chat_template=path.read_text(encoding="utf-8"),
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def shared_text(tokenizer: Any, path: Path, tools: Any) -> str:
    one, two = (render(tokenizer, path, user, tools) for user in ("Hello", "What?"))
    same = next(place for place in range(len(one)) if one[place] != two[place])
    return str(tokenizer.decode(one[:same]))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_static_head(tokenizer: Any, path: Path) -> None:
    head = shared_text(tokenizer, path, [TOOL])
    if path.stem == "no_static_head":
        assert "clerk" not in head
        return
    assert SYSTEM.strip() in head
    assert "look_up" in head
    assert "look_up" not in shared_text(tokenizer, path, None)


def test_the_demo_template_shows_its_options(tokenizer: Any) -> None:
    path = next(path for path in TEMPLATES if path.stem == "demo")
    plain = render(tokenizer, path, "Hello", None)
    assert render(tokenizer, path, "Hello", None, reasoning="high") != plain
