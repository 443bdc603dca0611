"""The pod's key and the init container's command."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import ValidationError

from promptprefix_sidecar.__main__ import main, read_settings
from promptprefix_sidecar.key_file import KeyFileError, ensure_key, read_key


@pytest.fixture(autouse=True)
def _restore_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_new_key_is_random_and_any_user_of_the_engine_can_read_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert ensure_key(one)
    assert ensure_key(other)
    assert len(read_key(one)) == 32
    assert read_key(one) != read_key(other)
    assert stat.S_IMODE(one.stat().st_mode) == 0o444
    assert sorted(tmp_path.iterdir()) == [one, other]


def test_a_good_key_is_kept_and_a_short_one_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"g" * 32)
    path.chmod(0o600)
    assert not ensure_key(path)
    assert read_key(path) == b"g" * 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    path.unlink()
    path.write_bytes(b"short")
    with pytest.raises(KeyFileError, match="has 5 bytes"):
        read_key(path)
    assert ensure_key(path)
    assert len(read_key(path)) == 32


def test_the_init_container_writes_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    monkeypatch.setenv("PROMPTPREFIX_KEY_FILE", str(path))
    assert main(["init-key"]) == 0
    key = read_key(path)
    assert main(["init-key"]) == 0
    assert read_key(path) == key
    monkeypatch.setenv("PROMPTPREFIX_KEY_FILE", str(tmp_path / "nowhere" / "key"))
    assert main(["init-key"]) == 1
    assert "No such file or directory" in capfd.readouterr().err


def test_bad_settings_are_named_without_their_value(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROMPTPREFIX_CONTROL_URL", "not-a-url")
    monkeypatch.setenv("PROMPTPREFIX_LEASE_S", "1")
    assert main(["run"]) == 2
    log = capfd.readouterr().err
    for variable in ("PROMPTPREFIX_CONTROL_URL", "PROMPTPREFIX_LEASE_S", "PROMPTPREFIX_POD_IP"):
        assert variable in log
    assert "not-a-url" not in log


def test_the_token_is_never_sent_unencrypted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROMPTPREFIX_CONTROL_URL", "http://operator.example:8443")
    monkeypatch.setenv("PROMPTPREFIX_POD_IP", "10.0.0.7")
    with pytest.raises(ValidationError, match="https"):
        read_settings()
    assert main(["run"]) == 2
    log = capfd.readouterr().err
    assert "PROMPTPREFIX_CONTROL_URL" in log
    assert "operator.example" not in log
