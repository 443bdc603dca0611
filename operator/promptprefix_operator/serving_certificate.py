"""The certificate of a TLS server, which may be replaced while it serves."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path

import structlog

from promptprefix_operator.certificates import Pair

FILES_SECONDS = 10.0
"""How often files that somebody else keeps are read again."""

log = structlog.get_logger(__name__)


class ServingCertificate:
    """``context`` serves what was loaded last, on new connections; ``loaded``: there is one."""

    def __init__(self) -> None:
        self.context = _context()
        self.loaded = asyncio.Event()
        self._pair: Pair | None = None

    def load(self, pair: Pair) -> bool:
        """Serve another certificate; return whether it is another one.

        Raises `ssl.SSLError` if certificate and key are unfit; the one before then stays.
        """
        if pair == self._pair:
            return False
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pair.pem"
            path.touch(mode=0o600)
            path.write_bytes(pair.key + b"\n" + pair.certificate)
            _context().load_cert_chain(path)  # half a change would leave the server without a key
            self.context.load_cert_chain(path)
        self._pair = pair
        self.loaded.set()
        return True


class CertificateFiles:
    """Keeps ``serving`` in line with two files, which a mounted Secret replaces at any time."""

    def __init__(self, certificate: Path, key: Path, serving: ServingCertificate) -> None:
        self._certificate = certificate
        self._key = key
        self._serving = serving

    async def keep(self) -> None:
        """Load what is there, and whatever comes later, for ever."""
        failure = ""
        while True:
            failure = self._check(failure)
            await asyncio.sleep(FILES_SECONDS)

    def _check(self, failure: str) -> str:
        """Load the files if they changed; return what is wrong with them, told once."""
        try:
            pair = Pair(self._certificate.read_bytes(), self._key.read_bytes())
            if self._serving.load(pair):
                log.info("certificate loaded", file=str(self._certificate))
        except OSError as error:  # an unfit pair's ssl.SSLError is one too
            text = f"{type(error).__name__}: {error}"
            if text != failure:
                log.error(
                    "certificate files can't be used: they must hold a PEM certificate and its key",
                    files=[str(self._certificate), str(self._key)],
                    error=text,
                )
            return text
        return ""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
