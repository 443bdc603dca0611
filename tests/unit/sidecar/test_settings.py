"""Settings from the environment: what is refused, and what the sidecar makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from promptprefix_sidecar.__main__ import main, read_settings
from promptprefix_sidecar.settings import Settings


@pytest.fixture(autouse=True)
def _restore_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTPREFIX_CONTROL_URL", "https://operator.example:8443")
    monkeypatch.setenv("PROMPTPREFIX_POD_IP", "10.0.0.7")


def read(monkeypatch: pytest.MonkeyPatch, **values: str) -> Settings:
    for name, value in values.items():
        monkeypatch.setenv(f"PROMPTPREFIX_{name}", value)
    return read_settings()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"ENGINE_API_KEY": "hush", "ENGINE_API_KEY_FILE": "/key"},
            "PROMPTPREFIX_ENGINE_API_KEY_FILE is set as well: give only one",
        ),
        ({"ENGINE_API_KEY": "hush hush"}, "must hold one line of printable ASCII without blanks"),
        ({"ENGINE_API_KEY": "hüsh"}, "must hold one line of printable ASCII without blanks"),
        ({"HOLD_S": "299"}, "must be 0 (never) or at least 300"),
        ({"HOLD_S": "-1"}, "greater than or equal to 0"),
        ({"POD_IP": ""}, "required"),
    ],
)
def test_a_wrong_value_is_named_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    values: dict[str, str],
    words: str,
) -> None:
    with pytest.raises(ValidationError):
        read(monkeypatch, **values)
    assert main(["run"]) == 2
    log = capfd.readouterr().err
    assert words.lower() in log.lower()
    assert f'"PROMPTPREFIX_{next(iter(values))}"' in log
    assert "hush" not in log
    assert "hüsh" not in log


def test_the_engines_key_comes_from_the_environment_or_a_file_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = read(monkeypatch, ENGINE_API_KEY="hush", ENGINE_API_KEY_FILE="")
    assert settings.engine_api_key is not None
    assert settings.engine_api_key.get_secret_value() == "hush"
    assert settings.engine_api_key_file is None
    assert "hush" not in f"{settings!r}{settings}"
    settings = read(monkeypatch, ENGINE_API_KEY="", ENGINE_API_KEY_FILE="/key")
    assert settings.engine_api_key is None
    assert settings.engine_api_key_file == Path("/key")


@pytest.mark.parametrize("value", ["0", "300", "86400"])
def test_pins_are_held_for_a_time_or_for_ever(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert read(monkeypatch, HOLD_S=value).hold_s == float(value)


@pytest.mark.parametrize(
    ("url", "tls", "port"),
    [
        ("http://127.0.0.1:8000", False, 8000),
        ("http://127.0.0.1", False, 80),
        ("https://127.0.0.1:8443", True, 8443),
        ("https://[::1]", True, 443),
    ],
)
def test_port_and_scheme_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, url: str, tls: bool, port: int
) -> None:
    settings = read(monkeypatch, ENGINE_URL=url)
    assert (settings.engine_tls, settings.engine_port) == (tls, port)


@pytest.mark.parametrize(
    "value", ["ipc:///run/kv/events", "tcp://127.0.0.1:5557", "tcp://[::1]:5557", None]
)
def test_endpoints_of_events(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    assert read(monkeypatch, KV_EVENTS_ENDPOINT=value or "").kv_events_endpoint == value


@pytest.mark.parametrize(
    "value",
    ["ipc://events", "tcp://*:5557", "tcp://host", "http://host:1", f"ipc:///{'x' * 107}"],
)
def test_endpoints_that_can_not_be_dialled(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(ValidationError, match="can be dialled"):
        read(monkeypatch, KV_EVENTS_ENDPOINT=value)


def test_replays_need_events(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="set PROMPTPREFIX_KV_EVENTS_ENDPOINT as well"):
        read(monkeypatch, KV_EVENTS_REPLAY_ENDPOINT="ipc:///run/kv/replay")


def test_the_readme_names_every_setting_and_its_default() -> None:
    readme = Path(__file__).parents[3] / "sidecar" / "README.md"
    rows = re.findall(
        r"^\| `PROMPTPREFIX_(\w+)` \| `?([^`|]+?)`? \|", readme.read_text(), re.MULTILINE
    )
    told = {name.lower(): default for name, default in rows}
    assert told == {name: _default(field) for name, field in Settings.model_fields.items()}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, float):
        return f"{field.default:g}"
    return str(field.default).removesuffix("/")
