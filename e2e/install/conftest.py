"""One installation for the whole story; after a failed step the later ones fail at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.install.stand import Stand, open_stand


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember the first step that failed."""
    yield
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        assert item.parent is not None
        item.parent.stash.setdefault(_FAILED, item.name)


_FAILED = pytest.StashKey[str]()


@pytest.fixture(autouse=True)
def _after_good_steps_only(request: pytest.FixtureRequest) -> None:
    failed = request.node.parent.stash.get(_FAILED, "")
    if failed:
        pytest.fail(f"the step {failed} failed before", pytrace=False)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The cluster, images and programs; nothing is installed yet."""
    folder: Path = tmp_path_factory.mktemp("install")
    with open_stand(folder, print) as opened:
        yield opened
