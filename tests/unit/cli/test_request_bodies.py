"""Request bodies of each API as input of the commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from promptprefix_cli.main import app

USER = {"role": "user", "content": "Hi"}


def run(command: str, text: str) -> tuple[int, str, str]:
    """Return status, output and complaints of a command that reads ``text``."""
    result = CliRunner().invoke(app, [command, "-o", "json", "-f", "-"], input=text)
    return result.exit_code, result.stdout, result.stderr


def spelled(**fields: Any) -> str:
    return json.dumps({"model": "m", **fields})


def tool(**schema: Any) -> dict[str, Any]:
    return {"name": "find", "description": "Finds.", **schema}


@pytest.mark.parametrize(
    "text",
    [
        spelled(system="You are a bot.", messages=[USER], max_tokens=1),
        spelled(system=[{"type": "text", "text": "You are a bot."}], messages=[USER]),
        spelled(instructions="You are a bot.", input="Hi"),
        spelled(input=[{"role": "developer", "content": "You are a bot."}, USER]),
    ],
)
def test_the_same_text_has_the_same_fingerprint_in_every_api(text: str) -> None:
    system = {"role": "system", "content": "You are a bot."}
    _, out, err = run("fingerprint", spelled(messages=[system, USER]) + "\n" + text)
    assert err == ""
    first, second = (row["fingerprint"] for row in json.loads(out))
    assert first == second


@pytest.mark.parametrize(
    "text",
    [
        spelled(messages=[USER], tools=[tool(input_schema={"type": "object"})]),
        spelled(input="Hi", tools=[tool(type="function", parameters={"type": "object"})]),
    ],
)
def test_tools_mean_the_same_in_every_api(text: str) -> None:
    declared = [{"type": "function", "function": tool(parameters={"type": "object"})}]
    chat = spelled(messages=[USER], tools=declared)
    _, out, err = run("fingerprint", chat + "\n" + text)
    assert err == ""
    first, second = (row["fingerprint"] for row in json.loads(out))
    assert first == second


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (spelled(system=1, messages=[USER]), "system: is missing or of the wrong type"),
        (spelled(system="x", messages=[]), "messages: is missing or of the wrong type; send what"),
        (spelled(input=[]), "send what /v1/responses takes"),
        (spelled(input="Hi", prompt={"id": "p"}), "prompt: makes the request match no declared"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_in_its_own_words(text: str, complaint: str) -> None:
    status, _, err = run("fingerprint", text)
    assert status == 2
    assert complaint in err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (spelled(system="It is 2026-11-29T10:00:00Z.", messages=[USER]), "system"),
        (spelled(instructions="It is 2026-11-29T10:00:00Z.", input="Hi"), "instructions"),
        (
            spelled(input=[{"role": "system", "content": "It is 2026-11-29T10:00:00Z."}, USER]),
            "input[0].content",
        ),
    ],
)
def test_findings_name_the_place_in_the_request(text: str, place: str) -> None:
    _, out, _ = run("lint", text)
    assert place in {finding["path"] for row in json.loads(out) for finding in row["findings"]}
