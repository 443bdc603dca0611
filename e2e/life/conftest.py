"""One stand for all tests of the folder: an engine takes most of a minute to start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.cluster import Cluster
from e2e.life.stand import Life, life
from e2e.life.texts import SALTS
from e2e.operator_stand import control_plane


@pytest.fixture(scope="package")
def server() -> Iterator[Cluster]:
    with control_plane(pods=0, secrets=SALTS) as started:
        yield started


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def whole_stand(
    server: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Life]:
    folder: Path = tmp_path_factory.mktemp("life")
    async with life(server, folder) as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="package")
async def stand(whole_stand: Life) -> AsyncIterator[Life]:
    """Give the stand without a resource; what a test declares goes with it."""
    yield whole_stand
    whole_stand.server.kubectl("delete", "pp", "--all", "-n", "ml", "--timeout=10s")
    for pod in whole_stand.pods:
        await whole_stand.until_unpinned(pod)
