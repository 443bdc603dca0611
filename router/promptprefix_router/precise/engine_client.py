"""Posts small questions to engines, on connections that are kept."""

from __future__ import annotations

import asyncio

from promptprefix_router.http_connection import Answer, HttpConnection, StaleError

MOST_IDLE = 4
"""Connections of one engine that are kept for the next question."""

_TOO_OLD_S = 4.0
"""Servers close idle connections, uvicorn after 5 s."""


class EngineClient:
    """Connections to engines by address. ``limit`` bounds an answer's body, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[str, list[tuple[HttpConnection, float]]] = {}

    async def post(self, host: str, port: int, address: str, path: str, body: bytes) -> Answer:
        """Return the answer to JSON; raise `UnreachableError`.

        ``address`` is ``host:port`` as the engine is called. Cancelling ends the connection.
        """
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._ask(kept, address, path, body)
            except StaleError:
                # Nothing was read there; tokens can be asked for twice.
                pass
        fresh = await HttpConnection.open(host, port, self._limit)
        return await self._ask(fresh, address, path, body)

    def retain(self, addresses: frozenset[str]) -> None:
        """Close what is kept of other engines."""
        for address in self._idle.keys() - addresses:
            for connection, _ in self._idle.pop(address):
                connection.close()

    async def _ask(
        self, connection: HttpConnection, address: str, path: str, body: bytes
    ) -> Answer:
        try:
            answer = await connection.post_json(address, path, body)
        except BaseException:
            connection.close()
            raise
        idle = self._idle.setdefault(address, [])
        if connection.kept and len(idle) < MOST_IDLE:
            idle.append((connection, asyncio.get_running_loop().time()))
        else:
            connection.close()
        return answer

    def _kept(self, address: str) -> HttpConnection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection, since = idle.pop()
            if asyncio.get_running_loop().time() - since < _TOO_OLD_S:
                return connection
            connection.close()
        return None
