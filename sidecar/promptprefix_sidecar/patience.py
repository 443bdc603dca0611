"""How long an answer of the operator is waited for: longer where there was no time before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import httpx

from promptprefix.redial import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S

MAX_CONNECT_S: Final = 12.0
MAX_ANSWER_S: Final = 2 * ANSWER_TIMEOUT_S
WRITE_TIMEOUT_S: Final = 10.0


@dataclass
class Patience:
    """Seconds, doubled with each failure in a row: a side that has little processor time is slow.

    To give up a handshake that needs 4 s after 3 s, and to begin it anew, is work without end.
    """

    connect_s: float = CONNECT_TIMEOUT_S
    answer_s: float = ANSWER_TIMEOUT_S
    _connects: int = 0
    _answers: int = 0

    @property
    def timeout(self) -> httpx.Timeout:
        """The limits of the next request."""
        connect = min(self.connect_s * 2**self._connects, max(MAX_CONNECT_S, self.connect_s))
        answer = min(self.answer_s * 2**self._answers, max(MAX_ANSWER_S, self.answer_s))
        return httpx.Timeout(connect, read=answer, write=WRITE_TIMEOUT_S)

    def answered(self) -> None:
        """Be as before: there was an answer."""
        self._connects = self._answers = 0

    def failed(self, error: httpx.HTTPError) -> None:
        """Take note of a request that had no answer."""
        if isinstance(error, httpx.ConnectTimeout):
            self._connects = min(self._connects + 1, 8)
        elif isinstance(error, httpx.TimeoutException):
            self._answers = min(self._answers + 1, 8)
