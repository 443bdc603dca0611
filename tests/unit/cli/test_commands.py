"""The commands as people type them: output, exit status, messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from promptprefix_cli.main import app

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "support-triage.yaml")
BOT = "pp1:sha256:6a5180bb0f2b217d2da0165949710376e3c8d6cee12889780807c4329dfc7526"
LONG = "Answer in one sentence and name the shelf on which the part lies. " * 40
TOOL = '{"type": "function", "function": {"name": "f"}}'


def run(command: str, *arguments: str, text: str | bytes = "") -> tuple[int, str, str]:
    """Return exit status, output and errors; ``text`` is read with ``-f -``."""
    result = CliRunner().invoke(app, [command, "-f", "-", *arguments], input=text)
    return result.exit_code, result.stdout, result.stderr


def prefix(name: str = "p", /, **spec: Any) -> str:
    """Return a manifest with fields of its spec replaced."""
    good: dict[str, Any] = {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
        "content": {"inline": {"systemInstructions": "You are a bot."}},
    }
    body = {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {**good, **spec},
    }
    return yaml.safe_dump(body)


def config_map(namespace: str = "ml", **data: Any) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "text", "namespace": namespace},
        "data": data,
    }
    return yaml.safe_dump(body)


def secret(namespace: str = "ml", **fields: Any) -> str:
    metadata = {"name": "text", "namespace": namespace}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": metadata} | fields)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def request(content: Any = "You are a bot.", **fields: Any) -> str:
    messages = [{"role": "system", "content": content}, {"role": "user", "content": "Hi"}]
    return json.dumps({"model": "m", "messages": messages, **fields})


def inline(**fields: str) -> dict[str, Any]:
    return {"content": {"inline": fields}}


REF = {"content": {"configMapRef": {"name": "text"}}}
SECRET_REF = {"content": {"secretRef": {"name": "text"}}}
LIST = yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(prefix())]})


@pytest.mark.parametrize(
    "text",
    [
        prefix(),
        json.dumps(yaml.safe_load(prefix())),
        "---\n" + prefix() + "---\n",
        LIST,
        prefix() + "---\napiVersion: apps/v1\nkind: Deployment\n",
        prefix(**REF) + "---\n" + config_map(systemInstructions="You are a bot."),
        config_map(systemInstructions="You are a bot.", README="x") + "---\n" + prefix(**REF),
        prefix(**SECRET_REF)
        + "---\n"
        + secret(data={"systemInstructions": encoded("You are a bot.")}),
        prefix(**SECRET_REF)
        + "---\n"
        + secret(stringData={"systemInstructions": "You are a bot."}),
        secret(
            data={"systemInstructions": encoded("Old."), "README": "%"},
            stringData={"systemInstructions": "You are a bot."},
        )
        + "---\n"
        + prefix(**SECRET_REF),
        request(),
        "\ufeff" + request(),
        json.dumps(json.loads(request()), indent=2),
        request([{"type": "text", "text": "You are a bot."}], temperature=1),
    ],
)
def test_fingerprint_of_the_same_text(text: str) -> None:
    status, out, err = run("fingerprint", "-o", "json", text=text)
    assert (status, err) == (0, "")
    assert [row["fingerprint"] for row in json.loads(out)] == [BOT]


def test_fingerprint_of_several_documents() -> None:
    text = prefix("a") + "---\n" + prefix("b", model="other")
    _, out, _ = run("fingerprint", text=text)
    first, second = out.splitlines()
    assert first == f"{BOT}  - document 1 (PromptPrefix ml/a), model m"
    assert second.endswith("  - document 2 (PromptPrefix ml/b), model other")
    assert BOT not in second


def test_json_lines() -> None:
    text = request() + "\n\n" + request("Other.") + "\n"
    status, out, _ = run("fingerprint", "-o", "yaml", text=text)
    rows = yaml.safe_load(out)
    assert status == 0
    assert [row["document"] for row in rows] == [
        "- document 1 (request body)",
        "- document 2 (request body)",
    ]
    assert rows[0]["fingerprint"] == BOT != rows[1]["fingerprint"]


def test_several_files_are_one_input(tmp_path: Path) -> None:
    (tmp_path / "prefix.yaml").write_text(prefix(**REF))
    (tmp_path / "text.yaml").write_text(config_map(systemInstructions="You are a bot."))
    files = ["-f", str(tmp_path / "prefix.yaml"), "-f", str(tmp_path / "text.yaml")]
    result = CliRunner().invoke(app, ["fingerprint", *files])
    assert result.exit_code == 0
    assert result.stdout.startswith(BOT)


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda each: each.name
)
def test_the_examples_are_clean(example: Path) -> None:
    result = CliRunner().invoke(app, ["lint", "-f", str(example)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "no findings" in result.stdout


def test_findings_say_where_and_how_to_fix() -> None:
    text = f"{LONG}\nToday is 2026-11-29.\n"
    status, out, err = run("lint", text=prefix(**inline(systemInstructions=text)))
    assert (status, err) == (1, "")
    assert out.startswith(
        "- document 1 (PromptPrefix ml/p): spec.content.inline.systemInstructions, "
        "line 2, column 10: Warning dynamic-timestamp: a date or time"
    )
    assert "tokens (estimated) from here on can never be reused" in out
    assert "add dynamic-timestamp to spec.lint.ignore" in out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_findings_for_machines(output: str) -> None:
    text = prefix("clean", **inline(systemInstructions=LONG)) + "---\n" + prefix("short")
    status, out, _ = run("lint", "-o", output, text=text)
    rows = json.loads(out) if output == "json" else yaml.safe_load(out)
    assert status == 1
    assert [len(row["findings"]) for row in rows] == [0, 1]
    finding = rows[1]["findings"][0]
    assert finding.keys() == {"rule", "severity", "path", "offset", "tokensLost", "message"}
    assert finding["rule"] == "short-prefix"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (prefix(**REF) + "---\n" + config_map(systemInstructions="x"), "data.systemInstructions"),
        (prefix(**inline(toolDefinitions=f"[{TOOL}]")), "spec.content.inline.toolDefinitions"),
        (request("x"), "messages[0].content"),
        (request("", tools=[json.loads(TOOL)]), "tools"),
    ],
)
def test_paths_are_those_of_the_document(text: str, path: str) -> None:
    _, out, _ = run("lint", "-o", "json", text=text)
    assert [finding["path"] for finding in json.loads(out)[0]["findings"]] == [path]


@pytest.mark.parametrize(
    ("lint", "words"),
    [
        ({"ignore": ["short-prefix"]}, "no findings"),
        ({"policy": "Off"}, "not linted, spec.lint.policy is Off"),
    ],
)
def test_what_the_manifest_says_of_linting_holds(lint: dict[str, Any], words: str) -> None:
    status, out, _ = run("lint", text=prefix(lint=lint))
    assert status == 0
    assert words in out


BAD_INPUT: tuple[tuple[str | bytes, str], ...] = (
    ("", "no PromptPrefix and no request body in the input"),
    ("kind: Deployment\n", "no PromptPrefix and no request body"),
    (b"\xff\xfe", "-: is not UTF-8 text (byte 0)"),
    ("just words\n", "- document 1: must be a PromptPrefix manifest or a request body"),
    ("[1, 2]", "- document 1: must be a PromptPrefix manifest"),
    ("a: b: c", "-: is not YAML: mapping values are not allowed here line 1, column 5"),
    ("a: 1\na: 2\n", "-: is not YAML: the key 'a' stands twice line 2, column 1"),
    ("1: a\n", "the key 1 is no string; quote it"),
    ("a: !!set {b}\n", "could not determine a constructor"),
    ("{a: " * 500 + "1" + "}" * 500, "-: is not YAML: maximum recursion depth exceeded"),
    ('{"model": "m",', "-: not JSON: "),
    ('{"model": "m", "model": "m"}', "-: the key 'model' stands twice in one object"),
    (request() + "\n{oops}\n", "-: line 2: not JSON: "),
    ('{"a": 1}', "- document 1: kind: is missing"),
    (prefix(replicas=0), "(PromptPrefix ml/p): spec.replicas: replicas must be a number from 1"),
    (prefix(replicas="2"), "spec.replicas: replicas must be a number from 1 to 10000, a perc"),
    (prefix(pinning="hard"), "spec.pinning: Input should be 'Hard', 'Soft' or 'None'"),
    (prefix(window=[]), "spec.window: unknown field; remove it or check its spelling"),
    (prefix(pods={}), "spec.pods: pods must have exactly one of selector and inferencePoolRef"),
    (prefix(content={}), "spec.content: content must have exactly one of inline, configMap"),
    (prefix(**inline(systemInstructions="")), "spec.content: declares neither a system text nor"),
    (prefix(**inline(toolDefinitions="{")), "spec.content.inline.toolDefinitions: not JSON"),
    (
        prefix(**inline(toolDefinitions='[{"type": "function"}]')),
        "spec.content.inline.toolDefinitions: tool 0 must be",
    ),
    (prefix(**REF), "spec.content.configMapRef.name: the ConfigMap text of namespace ml is not in"),
    (prefix(**REF) + "---\n" + config_map("other", systemInstructions="x"), "include its manifest"),
    (prefix(**REF) + "---\n" + config_map(README="x"), "none of the keys systemInstructions"),
    (prefix(**REF) + "---\n" + config_map(systemInstructions=1), "all of it strings"),
    (prefix(**REF) + "---\n" + config_map(toolDefinitions="{}"), "data.toolDefinitions: must be a"),
    (
        prefix(**SECRET_REF),
        "spec.content.secretRef.name: the Secret text of namespace ml is not in",
    ),
    (prefix(**SECRET_REF) + "---\n" + config_map(systemInstructions="x"), "read from a cluster)"),
    (
        prefix(**SECRET_REF) + "---\n" + secret(data={"systemInstructions": "%"}),
        "spec.content.secretRef.name: the Secret text: systemInstructions: is not base64",
    ),
    (prefix(**SECRET_REF) + "---\n" + secret(stringData=["x"]), "must have stringData, all of it"),
    (
        prefix(**SECRET_REF) + "---\n" + secret(stringData={"toolDefinitions": "{}"}),
        "stringData.toolDefinitions: must be a",
    ),
    (prefix().replace("v1alpha1", "v1"), "apiVersion: must be promptprefix.dev/v1alpha1"),
    (prefix(""), "metadata.name: is missing; add it"),
    (prefix().partition("spec:")[0], "spec: is missing; add it"),
    (request(1), "(request body): messages[0].content: is missing or of the wrong type"),
    (request([{"type": "image_url"}]), "messages[0].content: has parts that are no text"),
    (request(chat_template="x"), "chat_template: makes the request match no declared prefix"),
    (request(tools=[{"a": 2**53}]), "an integer beyond 2^53 is not exact in JSON (at /tools/0/a)"),
    ('{"model": "m"}', "messages: is missing or of the wrong type"),
    ("model: m\nmessages: [x]\ntools: &a [*a]\n", "messages[0]: is missing or of the wrong type"),
    ("model: m\nmessages: [{role: user}]\ntools: &a [*a]\n", "nested deeper than 100 levels"),
)


@pytest.mark.parametrize("command", ["fingerprint", "lint"])
@pytest.mark.parametrize(("text", "message"), BAD_INPUT)
def test_bad_input(command: str, text: str | bytes, message: str) -> None:
    status, out, err = run(command, text=text)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_all_errors_are_shown_at_once() -> None:
    text = prefix("a", replicas=0, pinning="x") + "---\n" + prefix("b", model="")
    _, _, err = run("lint", text=text)
    assert [line.split(": ")[2] for line in err.splitlines()] == [
        "spec.replicas",
        "spec.pinning",
        "spec.model",
    ]


@pytest.mark.parametrize(
    "arguments", [["lint"], ["lint", "-f"], ["nonsense"], ["lint", "-f", EXAMPLE, "-o", "xml"]]
)
def test_bad_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_missing_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lint", "-f", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml: can't be read: No such file" in result.stderr


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8")))
def test_any_input_is_answered(data: bytes) -> None:
    status, _, err = run("lint", text=data)
    assert status == 2
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('a: "be the bot" bot', "line 1, column 17"),
        ("a: {be the bot: 1\n", "line 2, column 1"),
        ('a: "\\q be the bot"', "line 1, column 6"),
        ("a: 1\n<<: be the bot\n", "line 2, column 5"),
        ("a: be the bot\nb: \x01 be the bot", "position 17"),
        ('{"a": "be the bot" x}', "column 20"),
    ],
)
def test_a_broken_input_is_never_quoted(text: str, place: str) -> None:
    status, out, errors = run("lint", text=text)
    assert status == 2
    assert place in errors
    assert "bot" not in out + errors


@pytest.mark.parametrize("policy", ["Warn", "Off"])
@pytest.mark.parametrize(
    ("window", "words"),
    [
        ({"schedule": "0 0 31 2 *"}, "spec.windows[1].schedule: "),
        ({"timeZone": "Europe/Atlantis"}, "spec.windows[1].timeZone: Europe/Atlantis is no time"),
    ],
)
def test_lint_tells_of_windows_that_can_not_be_read(
    window: dict[str, str], words: str, policy: str
) -> None:
    good = {"name": "office", "schedule": "0 8 * * *", "duration": "10h"}
    bad = {**good, "name": "bad", **window}
    text = prefix(windows=[good, bad], lint={"policy": policy})
    code, out, _ = run("lint", text=text)
    assert code == 1
    assert words in out
    assert "windows[0]" not in out
    (row,) = json.loads(run("lint", "-o", "json", text=text)[1])
    assert f"{row['windows'][0]['path']}: {row['windows'][0]['message']}".startswith(words)
    code, out, _ = run("lint", text=prefix(windows=[good], lint={"policy": "Off"}))
    assert (code, "windows" in out) == (0, False)
