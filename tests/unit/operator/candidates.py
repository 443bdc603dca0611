"""Candidates for the lead on machines with clocks of their own, and the Lease between them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from promptprefix_operator.api_server import ApiError
from promptprefix_operator.leadership import Leadership, Record, Times, record_of

TIMES = Times(lease=15)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/system/leases"
LEASE = f"{LEASES}/promptprefix-operator"
SECRET = "/api/v1/namespaces/system/secrets/promptprefix-operator-tls"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Store:
    """The API server's one Lease, with versions that only rise, and conflicts."""

    lease: dict[str, Any] | None = field(
        default_factory=lambda: {"metadata": {"resourceVersion": "1"}}
    )
    failure: ApiError | None = None
    lost_answers: int = 0
    reads: int = 0
    writes: int = 0
    """Those that were tried as well."""
    secret: str | None = "secret-uid"
    term: bool = False
    creations: int = 0
    version: int = 100
    owners: list[dict[str, str]] = field(default_factory=list)

    async def get(self, path: str) -> dict[str, Any]:
        if path == SECRET:
            if self.secret is None:
                raise ApiError(404, "no such secret")
            data = {"data": {"term": "MQ=="}} if self.term else {}
            return {"metadata": {"name": path.rpartition("/")[2], "uid": self.secret}, **data}
        assert path == LEASE
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        if self.lease is None:
            raise ApiError(404, "not found")
        return copy.deepcopy(self.lease)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == LEASES
        assert body["metadata"]["name"] == "promptprefix-operator"
        if self.lease is not None:
            raise ApiError(409, "exists")
        self.creations += 1
        self.owners = body["metadata"].get("ownerReferences", [])
        self.lease = self.reset()
        return copy.deepcopy(self.lease)

    def reset(self) -> dict[str, Any]:
        self.version += 1
        self.lease = {"metadata": {"resourceVersion": str(self.version)}}
        return self.lease

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        if self.failure is not None:
            raise self.failure
        if self.lease is None or body["metadata"] != self.lease["metadata"]:
            raise ApiError(409, "conflict")
        self.version += 1
        version = {"resourceVersion": str(self.version)}
        self.lease = copy.deepcopy({**body, "metadata": version})
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiError(0, "connection reset")
        return copy.deepcopy(self.lease)

    @property
    def record(self) -> Record:
        return record_of(self.lease or {})


@dataclass
class Machine:
    """A candidate on a machine with clocks of its own."""

    store: Store
    name: str
    time: float = 0.0
    wall: timedelta = timedelta()
    changes: int = 0
    signed: bool = True
    cut: bool = False
    candidate: Leadership = field(init=False)

    def __post_init__(self) -> None:
        self.candidate = Leadership(
            api=self.store,  # type: ignore[arg-type]
            namespace="system",
            name="promptprefix-operator",
            owner="promptprefix-operator-tls",
            signed=self.signed,
            identity=self.name,
            times=TIMES,
            clock=lambda: self.time,
            now=lambda: EPOCH + timedelta(seconds=self.time) + self.wall,
            changed=self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1

    async def attempt(self) -> bool:
        """Try once; who leads leaves its term before anything else."""
        self.store.failure = ApiError(0, "unreachable") if self.cut else None
        taken = await self.candidate._attempt(5)
        self.store.failure = None
        self.store.term |= self.signed and self.leads
        return taken

    @property
    def leads(self) -> bool:
        return self.candidate.leading


async def led_by_a(*, signed: bool = True) -> tuple[Machine, Machine]:
    store = Store(lease=None)
    a = Machine(store, "a", signed=signed)
    b = Machine(store, "b", time=7000.0, wall=timedelta(hours=-9), signed=signed)
    for machine in (a, b):
        await machine.attempt()
    a.time, b.time = a.time + TIMES.settle, b.time + 1
    assert await a.attempt()
    assert not await b.attempt()
    return a, b
