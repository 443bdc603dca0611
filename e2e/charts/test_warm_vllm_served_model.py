"""The check of ``helm test`` against a server that answers as vLLM does."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from e2e.charts.render import CHARTS, Values, of_kind
from e2e.charts.warm_vllm import environment, objects

PROGRAM = CHARTS / "warm-vllm" / "files" / "served_model.py"
MODELS = json.dumps({"object": "list", "data": [{"id": "chat"}, {"id": "adapter"}]}).encode()


@contextmanager
def server(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Give each answer once, the last one for ever; yield the address and the keys that came."""
    left, keys = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization", ""))
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", keys
        running.shutdown()
        thread.join()


Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the program as the test's pod does; return its exit status and its line."""
    spec = importlib.util.spec_from_file_location("served_model", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "ATTEMPTS", 3)
    monkeypatch.setattr(program, "PAUSE_SECONDS", 0.0)

    def run(url: str, model: str, **more: str) -> tuple[int, str]:
        for name, value in {"API_URL": url, "SERVED_MODEL": model, **more}.items():
            monkeypatch.setenv(name, value)
        return program.main(), capsys.readouterr().out

    return run


def test_a_served_model_passes(check: Check) -> None:
    with server((200, MODELS)) as (url, _):
        assert check(url, "chat") == (0, f"{url}/v1/models serves ['chat', 'adapter']\n")


def test_another_model_fails_and_is_named(check: Check) -> None:
    with server((200, MODELS)) as (url, _):
        status, line = check(url, "embedding")
    assert status == 1
    assert line.endswith("serves ['chat', 'adapter'], but not 'embedding'\n")


def test_an_answer_may_come_late(check: Check) -> None:
    with server((503, b""), (200, b"soon"), (200, MODELS)) as (url, keys):
        assert check(url, "chat")[0] == 0
    assert len(keys) == 3


def test_a_refusal_is_final(check: Check) -> None:
    with server((401, b"")) as (url, keys):
        status, line = check(url, "chat")
    assert (status, len(keys)) == (1, 1)
    assert "401 Unauthorized" in line


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": [1]}'])
def test_another_server_fails(check: Check, body: bytes) -> None:
    with server((200, body)) as (url, keys):
        status, line = check(url, "chat")
    assert (status, len(keys)) == (1, 3)
    assert "does not say what it serves" in line


def test_nobody_there_fails(check: Check) -> None:
    with server((200, MODELS)) as (url, _):
        pass
    status, line = check(url, "chat")
    assert status == 1
    assert "Connection refused" in line


def test_the_key_is_sent_and_not_shown(check: Check) -> None:
    with server((200, MODELS)) as (url, keys):
        status, line = check(url, "chat", API_KEY="confidential")
    assert (status, keys) == (0, ["Bearer confidential"])
    assert "confidential" not in line


@pytest.mark.parametrize(
    ("values", "url", "model"),
    [
        ({}, "http://qwen-warm-vllm.ml.svc:80", "Qwen/Qwen2.5-0.5B-Instruct"),
        (
            {"service": {"port": 8000}, "model": {"servedName": "chat"}, "fullnameOverride": "x"},
            "http://x.ml.svc:8000",
            "chat",
        ),
    ],
)
def test_the_pod_runs_it_for_the_release(values: Values, url: str, model: str) -> None:
    (test,) = of_kind(objects(values), "Pod")
    (container,) = test["spec"]["containers"]
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert container["command"] == ["python3", "-c", PROGRAM.read_text()]
    assert environment(container) == {"API_URL": url, "SERVED_MODEL": model}
