"""How the parent asks a worker: HTTP over a pair of sockets that ends with either of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from promptprefix_router.doors.http_door import Handler, HttpDoor
from promptprefix_router.http_connection import Answer, HttpConnection, UnreachableError

PATIENCE_S = 5.0
"""A worker that has not answered by then does not answer for now."""

MAX_ANSWER_BYTES = 16 * 1_048_576


class NoAnswerError(Exception):
    """A worker has ended, or is busy."""


class WorkerLink:
    """The parent's end. An answer that comes too late is still waited for before the next one."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._asking = asyncio.Lock()

    @classmethod
    async def over(cls, end: socket.socket) -> WorkerLink:
        """Return a link over one of a pair of sockets."""
        return cls(await HttpConnection.over(end, MAX_ANSWER_BYTES))

    async def ask(self, path: str, patience_s: float = PATIENCE_S) -> Answer:
        """Return the answer to a GET. Raises `NoAnswerError`."""
        asked = asyncio.ensure_future(self._ask(path))
        # Nobody may be left to hear that it failed.
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise NoAnswerError(f"no answer within {patience_s:g} s") from None

    async def _ask(self, path: str) -> Answer:
        async with self._asking:
            try:
                return await self._connection.get("worker", path)
            except UnreachableError as error:
                raise NoAnswerError(str(error)) from error

    def close(self) -> None:
        """End the link."""
        self._connection.close()


class _ParentsDoor(HttpDoor):
    def __init__(self, handler: Handler, gone: Callable[[], None]) -> None:
        super().__init__(handler, 0)
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone()


async def answer_parent(handler: Handler, descriptor: int, gone: Callable[[], None]) -> None:
    """Answer the parent at the worker's end; ``gone`` is called when it has ended."""
    end = socket.socket(fileno=descriptor)
    end.setblocking(False)
    await asyncio.get_running_loop().create_connection(
        lambda: _ParentsDoor(handler, gone), sock=end
    )
