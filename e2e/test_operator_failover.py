"""Two operators against a real API server: whatever becomes of the leader, one acts, and never two.

Both run as the operator's ServiceAccount with its rights alone, with the default Lease of 15 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml

from e2e.cluster import Cluster
from e2e.operator_stand import (
    SYSTEM,
    TEXT,
    Client,
    Operator,
    Sidecar,
    apply,
    control_plane,
    get,
    manifest,
    pod_token,
    process,
    ready,
    until,
)
from e2e.relays import Service, Witness, service, witness
from promptprefix.redial import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S
from promptprefix.wire import STANDBY_STATUS

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

LEASE_S = 15.0
LOOK_S = 2.4
"""A candidate looks at the Lease this often at least."""
START_S = 3.0
"""From the lead to the first answer: the Secret, the first reading, a plan."""


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


@dataclass(frozen=True)
class ClusterThrough:
    """The cluster as an operator is to see it: through a witness."""

    kubeconfig: Path
    cluster: Cluster

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl(*arguments, **options)


@dataclass
class Replica:
    """One operator; ``frozen``: its probe fails, so the Service leaves it out."""

    operator: Operator
    witness: Witness
    frozen: bool = False

    @property
    def port(self) -> int:
        """The control port; 0 where nobody could connect."""
        if self.frozen or self.operator.process.returncode is not None:
            return 0
        found = (x["control_port"] for x in self.operator.lines if x["event"] == "listening")
        return next(found, 0)

    @property
    def leads(self) -> bool:
        return self.operator.port > 0 and self.operator.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        self.frozen = number == signal.SIGSTOP
        os.kill(self.operator.process.pid, number)

    async def ended(self) -> tuple[int, float]:
        """Return the exit status and the seconds that it took."""
        began = time.monotonic()
        status = await asyncio.wait_for(self.operator.process.wait(), 10)
        return status, time.monotonic() - began


@asynccontextmanager
async def replica(server: Cluster, folder: Path, name: str) -> AsyncIterator[Replica]:
    place = folder / name
    place.mkdir()
    admin = yaml.safe_load(server.kubeconfig.read_text())
    async with witness(admin) as (seen, through):
        kubeconfig = place / "admin"
        kubeconfig.write_text(yaml.safe_dump(through))
        cluster = cast(Cluster, ClusterThrough(kubeconfig, server))
        async with process(cluster, place, IDENTITY=name) as operator:
            found = Replica(operator, seen)
            try:
                yield found
            finally:
                print(f"{name}, status {operator.process.returncode}:")
                print(*(each for each in operator.lines if each["level"] != "debug"), sep="\n")
                if found.frozen:
                    found.send(signal.SIGCONT)


class Redialing(httpx.AsyncBaseTransport):
    """Asks again on a new connection while standbys answer."""

    def __init__(self, authority: str) -> None:
        self._inner = httpx.AsyncHTTPTransport(verify=ssl.create_default_context(cadata=authority))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        while True:
            answer = await self._inner.handle_async_request(request)
            if answer.status_code != STANDBY_STATUS:
                return answer
            assert answer.headers["connection"] == "close"
            await answer.aclose()
            await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Dialer:
    """Stands for `Client`, behind the Service."""

    http: httpx.AsyncClient


@dataclass
class Stand:
    """Both replicas, ``leader`` first, and two sidecars that hold one warm prefix."""

    leader: Replica
    standby: Replica
    sidecars: list[Sidecar]
    before: dict[str, Any]
    term: int

    def assert_kept(self, server: Cluster) -> None:
        """Nobody wrote the prefix and no sidecar let go or fetched anew."""
        now = get(server, "promptprefix", "kept")
        assert now["status"] == self.before["status"]
        assert now["metadata"] == self.before["metadata"]
        assert [each.fetched for each in self.sidecars] == [[TEXT], [TEXT]]
        assert all(len(each.held) == 1 for each in self.sidecars)

    @property
    def followed(self) -> bool:
        """Whether every sidecar follows the next leader."""
        return all(each.applied and each.applied.term > self.term for each in self.sidecars)


@asynccontextmanager
async def stand(server: Cluster, folder: Path) -> AsyncIterator[Stand]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(server, folder, "first"))
        await until(lambda: first.leads, 30)
        second = await stack.enter_async_context(replica(server, folder, "second"))
        await until(lambda: second.port > 0, 30)
        assert not second.leads
        ready_ports = lambda: [each.port for each in (first, second) if each.port]  # noqa: E731
        front = await stack.enter_async_context(service(ready_ports))
        await until(lambda: "data" in get(server, "configmap", "promptprefix-ca"))
        fakes = [await stack.enter_async_context(sidecar(server, front, i)) for i in range(2)]
        apply(server, manifest("kept"))
        try:
            await until(lambda: ready(server, "kept") == ("True", "Warm", 1))
            await until(lambda: get(server, "promptprefix", "kept")["status"]["warm"] == "2/2")
            before = get(server, "promptprefix", "kept")
            term = fakes[0].applied.term if fakes[0].applied else 0
            yield Stand(first, second, fakes, before, term)
        finally:  # left behind, its status would pass for that of the next one
            server.kubectl("delete", "promptprefix", "kept", "-n", "ml", "--timeout=5s")


@asynccontextmanager
async def sidecar(server: Cluster, front: Service, index: int) -> AsyncIterator[Sidecar]:
    authority = get(server, "configmap", "promptprefix-ca")["data"]["ca.crt"]
    bearer = pod_token(server, f"vllm-{index}")
    async with httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{front.port}",
        transport=Redialing(authority),
        headers={"Authorization": f"Bearer {bearer}"},
        timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
    ) as http:
        found = Sidecar(cast(Client, Dialer(http)))
        task = asyncio.create_task(found.run())
        try:
            yield found
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def holder(server: Cluster) -> str:
    found = get(server, "lease", "promptprefix-operator", SYSTEM)
    return str(found["spec"]["holderIdentity"]).partition("_")[0]


async def test_a_killed_leader_is_followed_and_nothing_moves(
    server: Cluster, tmp_path: Path
) -> None:
    async with stand(server, tmp_path) as made:
        assert holder(server) == "first"
        made.leader.send(signal.SIGKILL)
        began = time.monotonic()
        await until(lambda: made.standby.leads, 40)
        took = time.monotonic() - began
        print(f"killed: the standby leads after {took:.1f} s")
        assert LEASE_S - LOOK_S - 1 < took < LEASE_S + LOOK_S + START_S
        assert holder(server) == "second"
        await until(lambda: made.followed)
        print(f"killed: the sidecars follow after {time.monotonic() - began:.1f} s")
        made.assert_kept(server)
        assert await made.standby.operator.metric("promptprefix_operator_leader ") == 1
        assert made.standby.operator.errors == []


async def test_a_leader_that_stops_hands_over_at_once(server: Cluster, tmp_path: Path) -> None:
    async with stand(server, tmp_path) as made:
        began = time.monotonic()
        made.leader.send(signal.SIGTERM)
        ended = asyncio.create_task(made.leader.ended())
        await until(lambda: made.standby.leads)
        took = time.monotonic() - began
        status, leaving = await ended
        assert status == 0
        print(f"stopped: the standby leads after {took:.1f} s, the leader took {leaving:.1f} s")
        assert leaving < 5
        assert took < LOOK_S + START_S
        assert any(each["event"] == "lease released" for each in made.leader.operator.lines)
        await until(lambda: made.followed)
        made.assert_kept(server)
        assert made.standby.operator.errors + made.leader.operator.errors == []


async def test_a_frozen_leader_writes_nothing_when_it_wakes(
    server: Cluster, tmp_path: Path
) -> None:
    """The sidecars' connections to it hang, as those to a node that vanished would."""
    async with stand(server, tmp_path) as made:
        began = time.monotonic()
        made.leader.send(signal.SIGSTOP)
        await until(lambda: made.standby.leads, 40)
        print(f"frozen: the standby leads after {time.monotonic() - began:.1f} s")
        await until(lambda: made.followed, ANSWER_TIMEOUT_S + CONNECT_TIMEOUT_S + 5)
        print(f"frozen: the sidecars follow after {time.monotonic() - began:.1f} s")
        made.assert_kept(server)

        # News that the sleeper's watch brings it at once, and that its plan would answer.
        apply(server, manifest("kept", text=f"Second. {TEXT}"))
        await until(lambda: ready(server, "kept") == ("True", "Warm", 2))
        written = len(made.leader.witness.writes)
        spec = get(server, "lease", "promptprefix-operator", SYSTEM)["spec"]
        made.leader.send(signal.SIGCONT)
        assert (await made.leader.ended())[0] == 0
        assert made.leader.witness.writes[written:] == []
        assert any("lead is lost" in each["event"] for each in made.leader.operator.lines)
        after = get(server, "lease", "promptprefix-operator", SYSTEM)["spec"]
        assert after["holderIdentity"] == spec["holderIdentity"]
        assert ready(server, "kept") == ("True", "Warm", 2)
        assert made.standby.operator.errors == []


async def test_both_serve_the_published_certificate(server: Cluster, tmp_path: Path) -> None:
    async with stand(server, tmp_path) as made:
        authority = get(server, "configmap", "promptprefix-ca")["data"]["ca.crt"]
        context = ssl.create_default_context(cadata=authority)
        for each, status in ((made.leader, 401), (made.standby, STANDBY_STATUS)):
            async with httpx.AsyncClient(verify=context) as http:
                answer = await http.post(f"https://127.0.0.1:{each.port}/v1/sidecar/sync")
            assert answer.status_code == status
            assert list(answer.json()) == ["message"]
        writes = set(made.standby.witness.writes)
        assert writes == set(), "a standby writes nothing"
        assert json.loads((await probe(made.standby))[1])["role"] == "standby"


async def probe(of: Replica) -> tuple[int, str]:
    [line] = [each for each in of.operator.lines if each["event"] == "listening"]
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://127.0.0.1:{line['metrics_port']}/healthz")
    return answer.status_code, answer.text
