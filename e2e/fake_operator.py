"""A fake of the operator's control API over real TLS, for tests of the sidecar alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import (
    CONTENT_PATH,
    LONG_POLL_S,
    SALT_PATH,
    SYNC_PATH,
    Phase,
    Placement,
    PlacementState,
    Revision,
    Salt,
    SidecarState,
    SyncRequest,
    SyncResponse,
)

TOKEN = "a-token-for-the-fake"


@dataclass
class FakeOperator:
    """Tells one sidecar what to hold, and remembers what it reports."""

    folder: Path
    port: int = 0
    blocks_key: str = ""
    pod_uid: str = ""
    states: list[SidecarState] = field(default_factory=list)
    _placements: tuple[Placement, ...] = ()
    _payloads: dict[str, Payload] = field(default_factory=dict)
    _salts: dict[str, str] = field(default_factory=dict)
    _number: int = 0
    _asked: float | None = None

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        (self.folder / "token").write_text(TOKEN)
        self._authority = LoopbackAuthority(self.folder)

    @property
    def ca_file(self) -> Path:
        return self._authority.ca_file

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def placement(
        self,
        name: str,
        payload: Payload,
        pinning: Pinning = Pinning.HARD,
        model: str = "demo",
        salt: str = "",
    ) -> Placement:
        """Return a placement whose content, and salt if it has one, the sidecar may fetch."""
        self._payloads[payload.digest] = payload
        placement_id = f"{name}/{payload.digest[:12]}"
        self._salts[placement_id] = salt
        return Placement(
            id=placement_id,
            namespace="ml",
            name=name,
            model=model,
            fingerprint="pp1:sha256:0",
            content_digest=payload.digest,
            pinning=pinning,
            salted=bool(salt),
        )

    async def want(self, placements: Iterable[Placement]) -> None:
        """Change the desired set."""
        async with self._changed:
            self._placements = tuple(placements)
            self._number += 1
            self._changed.notify_all()

    async def until(
        self, condition: Callable[[SidecarState], bool], timeout_s: float
    ) -> SidecarState:
        """Wait for a state that satisfies the condition."""
        async with asyncio.timeout(timeout_s), self._changed:
            while not self.states or not condition(self.states[-1]):
                await self._changed.wait()
            return self.states[-1]

    async def warm(self, placement: Placement, timeout_s: float = 60.0) -> PlacementState:
        """Wait until the placement is warm; return what is reported of it."""
        state = await self.until(lambda s: phase_of(s, placement) is Phase.WARM, timeout_s)
        return next(item for item in state.placements if item.id == placement.id)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve, on the same port every time; the end of the block is an outage."""
        app = web.Application()
        app.router.add_post(SYNC_PATH, self._sync)
        app.router.add_get(f"{CONTENT_PATH}/{{digest}}", self._content)
        app.router.add_get(f"{SALT_PATH}/{{id:.+}}", self._salt)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        context = self._authority.server_context()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context).start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()

    async def _sync(self, request: web.Request) -> web.Response:
        _check_token(request)
        question = SyncRequest.model_validate_json(await request.read())
        async with self._changed:
            self.states.append(question.state)
            self._asked = question.asked
            self._changed.notify_all()
            seen = question.revision and question.revision.number
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONG_POLL_S):
                    await self._changed.wait_for(
                        lambda: self._number != seen or self._asked != question.asked
                    )
            if self._number == seen or self._asked != question.asked:
                return web.Response(status=204)
            answer = SyncResponse(
                revision=Revision(term=1, number=self._number),
                placements=self._placements,
                blocks_key=self.blocks_key,
                pod_uid=self.pod_uid,
            )
        return web.Response(body=answer.model_dump_json().encode())

    async def _content(self, request: web.Request) -> web.Response:
        _check_token(request)
        payload = self._payloads[request.match_info["digest"]]
        return web.Response(body=payload.model_dump_json().encode())

    async def _salt(self, request: web.Request) -> web.Response:
        _check_token(request)
        salt = Salt(salt=self._salts[request.match_info["id"]])
        return web.Response(body=salt.model_dump_json().encode())


def phase_of(state: SidecarState, placement: Placement) -> Phase | None:
    """Return the phase in which a placement is reported, None if it isn't."""
    return next((item.phase for item in state.placements if item.id == placement.id), None)


def _check_token(request: web.Request) -> None:
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        raise web.HTTPUnauthorized
