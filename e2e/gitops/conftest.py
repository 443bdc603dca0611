from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import binaries
from e2e.tools.gitops import GitOpsStatus


@pytest.fixture(scope="session")
def tools() -> GitOpsStatus:
    """What Flux and Argo CD say."""
    return GitOpsStatus.find_or_build(print)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """The real kubectl, with the kustomize inside it; no cluster is started."""
    return binaries.find_or_build(print, node=False).path("kubectl")
