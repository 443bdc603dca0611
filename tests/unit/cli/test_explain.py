"""``promptprefix explain``: of request bodies, and of what routers saw."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from promptprefix_cli.main import app

SYSTEM = "Desk of 2026-11-29.\nOpened by Ann. " + "Never guess; ask. " * 40
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]


def manifest(name: str = "desk", **inline: str) -> str:
    content = {"systemInstructions": SYSTEM, "toolDefinitions": json.dumps(TOOLS), **inline}
    body = {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
            "content": {"inline": content},
        },
    }
    return yaml.safe_dump(body)


def chat(system: str = SYSTEM, **changes: Any) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    return json.dumps({"model": "m", "messages": messages, "tools": TOOLS, **changes})


def message(system: str) -> str:
    tools = [{"name": "f", "input_schema": {"b": 1, "a": 2, "type": "object"}}]
    turns = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "m", "system": system, "messages": turns, "tools": tools})


def run(
    folder: Path, *arguments: str, request: str = "", manifests: str = ""
) -> tuple[int, str, str]:
    """Return exit status, output and errors."""
    options = list(arguments)
    if manifests:
        (folder / "prefix.yaml").write_text(manifests)
        options += ["-f", str(folder / "prefix.yaml")]
    if request:
        (folder / "request.json").write_text(request)
        options.append(str(folder / "request.json"))
    result = CliRunner().invoke(app, ["explain", *options])
    return result.exit_code, result.stdout, result.stderr


CASES = [
    (chat(), 0, "match: ", "PromptPrefix ml/desk"),
    (chat(f"{SYSTEM} It is noon."), 0, "head: begins as ", "computed in every request"),
    (chat(SYSTEM.replace("11-29", "11-30")), 1, "near miss: ",
     "timestamp at systemInstructions, line 1, column 17; about"),
    (chat(SYSTEM.replace("Ann", "Bob")), 1, "edited-text at systemInstructions, line 2, column 11",
     "send the declared text"),
    (chat(SYSTEM.replace("\n", "\r\n")), 1, "line-ends", "normalizeRequests"),
    (chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": 2, "b": 1}}}]),
     1, "key-order at toolDefinitions[0], character ", "normalizeRequests"),
    (chat(model="n"), 1, "near miss: ", "model at model; about"),
    (chat(documents=["x"]), 1, "undeclared: own-template: documents", "leave it out"),
    (chat(tools=[2**60]), 1, "undeclared: not-canonical", "2^53"),
    (chat("Another desk."), 1, "no match: declare its text", ""),
    (message(SYSTEM.replace("11-29", "11-30")), 1, "near miss: ", "timestamp"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "said", "also"), CASES)
def test_a_request_is_explained_in_one_line(
    tmp_path: Path, request_: str, status: int, said: str, also: str
) -> None:
    code, out, err = run(tmp_path, request=request_, manifests=manifest())
    assert (code, err) == (status, "")
    assert out.count("\n") == 1
    assert said in out
    assert also in out


def test_the_longest_head_and_the_nearest_prefix_are_named(tmp_path: Path) -> None:
    longer = f"{SYSTEM} Night shift. Be quick."
    both = "---\n".join([manifest(), manifest("night", systemInstructions=longer)])
    assert "ml/night" in run(tmp_path, request=chat(f"{longer} Now."), manifests=both)[1]
    near = chat(longer.replace("quick", "slow"), chat_template_kwargs={})
    assert "begins as" in run(tmp_path, request=near, manifests=both)[1]
    changed = chat(f"Today: {longer}")
    assert "ml/night" in run(tmp_path, request=changed, manifests=both)[1]


def test_data_for_machines(tmp_path: Path) -> None:
    request = chat(SYSTEM.replace("11-29", "11-30"))
    code, out, _ = run(tmp_path, "-o", "json", request=request, manifests=manifest())
    assert code == 1
    [row] = json.loads(out)
    assert {key: row[key] for key in ("verdict", "cause", "field", "offset", "line", "column")} == {
        "verdict": "near-miss",
        "cause": "timestamp",
        "field": "systemInstructions",
        "offset": 16,
        "line": 1,
        "column": 17,
    }
    assert 0 < row["tokensLost"] <= row["tokens"]
    assert "Never guess" not in out
    assert yaml.safe_load(
        run(tmp_path, "-o", "yaml", request=request, manifests=manifest())[1]
    ) == [row]


def test_several_requests(tmp_path: Path) -> None:
    lines = f"{chat()}\n{chat('Another desk.')}\n"
    code, out, _ = run(tmp_path, request=lines, manifests=manifest())
    assert (code, out.count("\n")) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "request_", "manifests", "said"),
    [
        ((), "", "", "give -f MANIFEST and REQUEST.json, or --from URL"),
        ((), chat(), "", "give -f"),
        ((), "", manifest(), "give -f"),
        (("--from", "http://127.0.0.1:1"), chat(), manifest(), "give -f"),
        (("--from", "ftp://x"), "", "", "must be http://HOST:PORT"),
        (("--from", "http://127.0.0.1:1"), "", "", "can't be read"),
        ((), manifest(), manifest(), "is no request body"),
        ((), "[]", manifest(), "is no request body"),
        ((), "{", manifest(), "error"),
        (("missing.json",), "", manifest(), "can't be read"),
    ],
)
def test_bad_input(
    tmp_path: Path, arguments: tuple[str, ...], request_: str, manifests: str, said: str
) -> None:
    code, out, err = run(tmp_path, *arguments, request=request_, manifests=manifests)
    assert (code, out) == (2, "")
    assert said in err


SEEN = {
    "nearMisses": [
        {"time": f"2026-11-30T10:00:0{n}+00:00", "prefix": f"p{n}", "api": "/v1/messages",
         "cause": cause, "field": "systemInstructions", "offset": 5, "tokensLost": 7, "new": 1}
        for n, cause in enumerate(("timestamp", "unheard-of"))
    ],
    "undeclared": {"other-text": 3},
}  # fmt: skip


@pytest.fixture
def router() -> Iterator[tuple[str, dict[str, Any]]]:
    answers: dict[str, Any] = {"/near-misses": SEEN}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_routers_saw(tmp_path: Path, router: tuple[str, dict[str, Any]]) -> None:
    url, answers = router
    code, out, err = run(tmp_path, "--from", url, "--from", f"{url}/")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("2026-11-30T10:00:01+00:00 p1 (/v1/messages): unheard-of at")
    assert lines[2].endswith(
        "p0 (/v1/messages): timestamp at systemInstructions, character 5; about 7 tokens lost; "
        "move the date or time into the user turn"
    )
    assert lines[4] == "undeclared, other-text: 3"
    code, out, _ = run(tmp_path, "--from", url, "-o", "json")
    assert (code, json.loads(out)[0]["undeclared"]) == (1, {"other-text": 3})
    answers["/near-misses"] = {"nearMisses": [], "undeclared": {}}
    assert run(tmp_path, "--from", url) == (0, "no near miss was seen\n", "")
    answers["/near-misses"] = ["other"]
    assert run(tmp_path, "--from", url)[0] == 2
    assert run(tmp_path, "--from", f"{url}/elsewhere")[0] == 2
