"""The operator's process against a real API server: edits of a text, and who holds which version.

The sidecars are played; they warm a text when the test lets them.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from e2e.cluster import Cluster
from e2e.operator_stand import (
    SYSTEM,
    Client,
    Operator,
    Sidecar,
    apply,
    control_plane,
    get,
    manifest,
    operator,
    pod_token,
    process,
    ready,
    token,
    until,
)
from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import (
    AUDIENCE,
    MATCH_STEP_S,
    Match,
    MatchAnswer,
    MatchReport,
    Phase,
    RoutePrefix,
    SyncResponse,
)

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

NAME = "edited"
IDLE_S = 6
KEPT_S = IDLE_S + MATCH_STEP_S
"""What nobody sends goes within this time: of the last matches of a step nobody has told yet."""
COUNTS_S = 130
"""Counts alone are written within this time."""
TEXTS = {name: f"Text {name}. " * 400 for name in ("one", "two", "three", "four")}
DIGESTS = {name: Payload(systemInstructions=text).digest for name, text in TEXTS.items()}
NAMES = {digest: name for name, digest in DIGESTS.items()}


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


@pytest.fixture
def server(plane: Cluster) -> Iterator[Cluster]:
    yield plane
    plane.kubectl("delete", "promptprefixes", "--all", "-n", "ml", "--timeout=10s")


@dataclass
class Paced(Sidecar):
    """A sidecar that warms nothing new while it is ``patient``."""

    patient: bool = False
    told: tuple[str, ...] = ()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            asking = asyncio.create_task(self._ask())
            await asyncio.wait({changed, asking}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if not asking.done():
                asking.cancel()
            await asyncio.gather(changed, asking, return_exceptions=True)
            if not asking.cancelled() and (error := asking.exception()) is not None:
                raise error

    def warm(self) -> None:
        """Warm what waits, and everything from now on."""
        self.patient = False
        self.held = {
            id_: state.model_copy(
                update={"phase": Phase.WARM, "pinned": Pinning.HARD, "pinned_tokens": 320}
            )
            for id_, state in self.held.items()
        }
        self._changed.set()

    def turn_to(self, client: Client) -> None:
        """Ask another operator from now on."""
        self.client = client
        self._changed.set()

    async def _ask(self) -> None:
        try:
            answer = await self.client.http.post(
                "/v1/sidecar/sync", content=self._question().model_dump_json()
            )
        except httpx.TransportError:
            await asyncio.sleep(0.2)
            return
        if answer.status_code in (204, 421, 503):
            return
        assert answer.status_code == 200, answer.text
        before = self.held
        response = SyncResponse.model_validate_json(answer.content)
        try:
            await self._apply(response)
        except httpx.TransportError:  # what was not taken in is told again
            return
        self.told = tuple(NAMES.get(each.content_digest, "?") for each in response.placements)
        for id_, state in self.held.items():
            if id_ in before:
                self.held[id_] = before[id_]
            elif self.patient:
                self.held[id_] = state.model_copy(
                    update={"phase": Phase.WARMING, "pinned": Pinning.NONE, "pinned_tokens": 0}
                )


@asynccontextmanager
async def paced(server: Cluster, running: Operator) -> AsyncIterator[list[Paced]]:
    await until(lambda: "data" in get(server, "configmap", "promptprefix-ca"))
    found = [Paced(Client(server, running, pod_token(server, f"vllm-{i}"))) for i in range(2)]
    tasks = [asyncio.create_task(each.run()) for each in found]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in found:
            await each.client.http.aclose()
        for error in ended:
            if isinstance(error, Exception):
                raise error


def edit(server: Cluster, name: str) -> None:
    apply(server, manifest(NAME, TEXTS[name]))


def versions(server: Cluster) -> list[tuple[str, int]]:
    """Return the versions in the status: each text, and on how many pods it is warm."""
    status = get(server, "promptprefix", NAME).get("status", {})
    listed = status.get("versions", [])
    return [(NAMES[each["contentDigest"]], each["warmPods"]) for each in listed]


class Router:
    """Asks for the routes and reports matches, with a router's token."""

    def __init__(self, server: Cluster, running: Operator) -> None:
        bearer = token(server, SYSTEM, "promptprefix-router", f"--audience={AUDIENCE}")
        self.client = Client(server, running, bearer)

    async def prefixes(self) -> Sequence[RoutePrefix]:
        return [each for each in (await self.client.routes()).prefixes if each.name == NAME]

    async def routed(self) -> list[tuple[str, ...]]:
        """Return the texts by their versions' token digests, as the routes tell them."""
        table = await self.client.routes()
        found = [each for each in table.prefixes if each.name == NAME]
        warm = {digest for endpoint in table.endpoints for digest in endpoint.warm}
        assert all(set(each.token_digests) <= warm for each in found)
        return [tuple(NAMES[digest] for digest in each.token_digests) for each in found]

    async def match(self, index: int) -> int:
        """Report a match of a version by its place in the routes; return the leader's term."""
        version = (await self.prefixes())[index]
        now = time.time()
        match = Match(id=version.id, count=1, at=now)
        report = MatchReport(tenant="ml", sent=now, matches=(match,))
        answer = await self.client.http.post("/v1/matches", content=report.model_dump_json())
        assert answer.status_code == 200, answer.text
        return MatchAnswer.model_validate_json(answer.content).term


@asynccontextmanager
async def asking(server: Cluster, running: Operator) -> AsyncIterator[Router]:
    router = Router(server, running)
    try:
        yield router
    finally:
        await router.client.http.aclose()


@asynccontextmanager
async def matching(router: Router, index: int) -> AsyncIterator[None]:
    """Let requests match a version all the time."""

    async def match() -> None:
        while True:
            await asyncio.sleep(0.3)
            await router.match(index)

    assert await router.match(index) > 0
    task = asyncio.create_task(match())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_old_text_stays_until_the_new_one_is_warm_and_nobody_sends_it(
    server: Cluster, tmp_path: Path
) -> None:
    async with (
        operator(server, tmp_path, VERSION_IDLE_SECONDS=str(IDLE_S)) as running,
        paced(server, running) as pods,
        asking(server, running) as router,
    ):
        edit(server, "one")
        await until(lambda: ready(server, NAME) == ("True", "Warm", 1))
        await until(lambda: versions(server) == [("one", 2)], COUNTS_S)

        for each in pods:
            each.patient = True
        edit(server, "two")
        await until(lambda: all(each.told == ("two", "one") for each in pods))
        await until(lambda: versions(server) == [("two", 0), ("one", 2)])
        await asyncio.sleep(KEPT_S)  # the time after which a text that is not needed goes
        assert [each.told for each in pods] == [("two", "one")] * 2
        assert ready(server, NAME) == ("False", "Warming", 2)
        assert await router.routed() == [(), ("one",)]

        async with matching(router, -1):
            pods[0].warm()
            while await router.routed() != [("two",), ("one",)]:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
            assert pods[1].told == ("two", "one")
            pods[1].warm()
            await until(lambda: ready(server, NAME) == ("True", "Warm", 2))
            await asyncio.sleep(KEPT_S + 2)  # what would be idle by now
            assert [each.told for each in pods] == [("two", "one")] * 2
            assert await router.routed() == [("two",), ("one",)]

        stopped = time.monotonic()
        await until(lambda: [each.told for each in pods] == [("two",)] * 2, KEPT_S + 20)
        waited = time.monotonic() - stopped
        print(f"the old text went {waited:.1f} s after its last match")
        assert IDLE_S - 3 < waited < KEPT_S + 5
        assert await router.routed() == [("two",)]
        await until(lambda: versions(server) == [("two", 2)])
    assert running.errors == []


async def test_a_burst_is_one_version_and_a_return_is_at_once(
    server: Cluster, tmp_path: Path
) -> None:
    async with operator(server, tmp_path) as running, paced(server, running) as pods:
        edit(server, "one")
        await until(lambda: ready(server, NAME)[:2] == ("True", "Warm"))
        written = 'promptprefix_operator_status_writes_total{result="written"}'
        before = await running.metric(written) or 0.0
        began = time.monotonic()
        for name in ("two", "three", "two", "three", "four"):
            edit(server, name)
        print(f"five edits in {time.monotonic() - began:.1f} s")
        await until(lambda: ready(server, NAME) == ("True", "Warm", 6))
        assert [each.fetched for each in pods] == [[TEXTS["one"], TEXTS["four"]]] * 2
        await until(lambda: versions(server) == [("four", 2), ("one", 2)], COUNTS_S)
        writes = (await running.metric(written) or 0.0) - before
        print(f"{writes:.0f} writes of the status for them")
        assert writes <= 3

        edit(server, "one")
        began = time.monotonic()
        await until(lambda: ready(server, NAME) == ("True", "Warm", 7))
        returned = time.monotonic() - began
        print(f"a return was Ready {returned:.2f} s after its apply")
        assert returned < 1.5, "less than an edit waits"
        assert [each.fetched for each in pods] == [[TEXTS["one"], TEXTS["four"]]] * 2
        await until(lambda: versions(server) == [("one", 2), ("four", 2)], COUNTS_S)
    assert running.errors == []


@asynccontextmanager
async def killed(server: Cluster, folder: Path) -> AsyncIterator[Operator]:
    """Run an operator that the test ends without a word."""
    async with process(server, folder, LEASE_SECONDS="15") as running:
        await until(lambda: running.port > 0, 60)
        yield running
        assert running.process.returncode == -signal.SIGKILL


async def test_an_operator_that_dies_in_the_middle_of_an_edit_forgets_no_text(
    server: Cluster, tmp_path: Path
) -> None:
    async with killed(server, tmp_path) as first, paced(server, first) as pods:
        edit(server, "one")
        await until(lambda: ready(server, NAME)[:2] == ("True", "Warm"))
        for each in pods:
            each.patient = True
        edit(server, "two")
        await until(lambda: versions(server) == [("two", 0), ("one", 2)])
        first.process.kill()
        await first.process.wait()

        async with killed(server, tmp_path) as second:
            await _follow(server, second, pods)
            assert [each.told for each in pods] == [("two", "one")] * 2
            async with asking(server, second) as router:
                assert await router.routed() == [(), ("one",)]
            edit(server, "three")
            second.process.kill()
            await second.process.wait()

            async with process(server, tmp_path, LEASE_SECONDS="15") as third:
                await until(lambda: third.port > 0, 60)
                await _follow(server, third, pods)
                await until(lambda: all(each.told == ("three", "one") for each in pods))
                await until(lambda: versions(server)[-1] == ("one", 2), COUNTS_S)
                for each in pods:
                    each.warm()
                await until(lambda: ready(server, NAME) == ("True", "Warm", 3))
                assert [each.told for each in pods] == [("three", "one")] * 2
                edit(server, "one")
                await until(lambda: ready(server, NAME) == ("True", "Warm", 4))
                texts = [TEXTS["one"], TEXTS["two"], TEXTS["three"]]
                assert [each.fetched for each in pods] == [texts] * 2
                assert third.errors == []


async def _follow(server: Cluster, running: Operator, pods: Sequence[Paced]) -> None:
    """Let the pods ask a new operator, and wait until it has told them something."""
    terms = [each.applied.term if each.applied is not None else 0 for each in pods]
    for each in pods:
        before = each.client.http
        bearer = str(before.headers["authorization"]).partition(" ")[2]
        each.turn_to(Client(server, running, bearer))
        await before.aclose()
    await until(
        lambda: all(
            each.applied is not None and each.applied.term > term
            for each, term in zip(pods, terms, strict=True)
        ),
        60,
    )
