"""One engine of each kind for the whole suite; every test starts with an empty cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.contract.subject import Subject, started


@pytest.fixture(scope="package", params=["simulator", "vllm"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with started(request.param) as engine:
        yield engine


@pytest.fixture
def client(subject: Subject) -> Iterator[ContractClient]:
    client = ContractClient(subject.engine)
    client.learn_epoch()
    for pin in client.command("report")["pins"]:
        client.command("unpin", pin["id"])
    client.post("/reset_prefix_cache")
    yield client
    client.close()
