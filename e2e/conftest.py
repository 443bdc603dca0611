from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster

# Runs in the engine's own environment, started by engine/test_classes.py.
collect_ignore = ["engine/tests"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of the module's own: the next module may start one in the same place."""
    with Cluster.start(progress=print) as started:
        yield started
