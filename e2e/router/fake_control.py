"""A fake of the operator's control API: TLS, one token, the route table by long poll."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.payload import Payload
from promptprefix.wire import (
    CONTENT_PATH,
    MATCHES_PATH,
    ROUTES_PATH,
    BlocksKey,
    Match,
    MatchAnswer,
    MatchReport,
    Revision,
    RouteEndpoint,
    RoutePrefix,
    RouteTable,
    TenantSalt,
)

TOKEN = "fake-service-account-token"
POLL_S = 5.0


@dataclass
class FakeControl:
    """Serves one route table; `publish` replaces it and wakes the questions that wait.

    ``matches`` holds what the router has reported. ``contents`` has the declared texts by digest.
    """

    folder: Path
    port: int = 0
    table: RouteTable = field(
        default_factory=lambda: RouteTable(
            revision=Revision(term=1, number=0), prefixes=(), endpoints=()
        )
    )
    asked: int = -1
    """Number of the revision that the last question named."""
    matches: list[Match] = field(default_factory=list)
    blocks_keys: tuple[BlocksKey, ...] = ()
    reports: list[MatchReport] = field(default_factory=list)
    contents: dict[str, Payload] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None

    @property
    def ca_file(self) -> Path:
        """The certificate that clients trust."""
        return self.folder / "ca.crt"

    @property
    def token_file(self) -> Path:
        """The token that clients must show."""
        return self.folder / "token"

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        """Listen on a free port, or again on the one it had."""
        authority = LoopbackAuthority(self.folder)
        self.token_file.write_text(f"{TOKEN}\n")
        app = web.Application()
        app.router.add_get(ROUTES_PATH, self._routes)
        app.router.add_post(MATCHES_PATH, self._matches)
        app.router.add_get(CONTENT_PATH + "/{digest}", self._content)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        context = authority.server_context()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Be away, as a stopped operator is."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def publish(
        self,
        prefixes: tuple[RoutePrefix, ...],
        endpoints: tuple[RouteEndpoint, ...],
        tenants: tuple[TenantSalt, ...] = (),
    ) -> None:
        """Replace the table; return when a question shows that it was taken."""
        number = self.table.revision.number + 1
        async with self._changed:
            self.table = RouteTable(
                revision=Revision(term=1, number=number),
                prefixes=prefixes,
                endpoints=endpoints,
                tenants=tenants,
                blocks_keys=self.blocks_keys,
            )
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self.asked == number)

    async def _routes(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        async with self._changed:
            self.asked = int(request.query.get("number", "-1"))
            self._changed.notify_all()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait_for(lambda: self.table.revision.number != self.asked)
            except TimeoutError:
                return web.Response(status=204)
            return web.json_response(text=self.table.model_dump_json())

    async def _matches(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        report = MatchReport.model_validate_json(await request.read())
        self.matches += report.matches
        self.reports.append(report)
        return web.json_response(text=MatchAnswer(term=1).model_dump_json())

    async def _content(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        payload = self.contents.get(request.match_info["digest"])
        if payload is None:
            return web.Response(status=404)
        return web.json_response(text=payload.model_dump_json())
