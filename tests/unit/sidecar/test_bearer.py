"""Credentials from files, and what becomes of broken ones."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from promptprefix_sidecar.bearer import BearerError, authorization, bearer
from promptprefix_sidecar.engine_api import EngineApi, EngineError


@pytest.mark.parametrize("raw", [b"a.b-c_d~e+f/g==", b"sk-$%&\n", b"  padded\r\n"])
def test_the_credential_is_what_stands_in_the_file(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(raw)
    assert authorization(file) == bearer(raw, "it") == f"Bearer {raw.decode().strip()}"


@pytest.mark.parametrize(
    "raw", [b"", b" \n", b"two words", b"first\nsecond", b"\x01x", b"\xc3\xa9"]
)
async def test_a_broken_credential_is_an_error_of_the_engine_and_not_quoted(
    tmp_path: Path, raw: bytes
) -> None:
    file = tmp_path / "key"
    file.write_bytes(raw)
    with pytest.raises(BearerError):
        authorization(file)
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
        with pytest.raises(EngineError) as caught:
            await EngineApi(client, authorization=lambda: authorization(file)).check_health()
    assert str(caught.value) == (
        f"the engine's API key {file} must hold one line of printable ASCII without blanks"
    )
