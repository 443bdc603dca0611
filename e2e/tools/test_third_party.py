"""The CRDs of other projects are where they are said to be, and of the versions that charts use."""

from __future__ import annotations

import pytest
import yaml

from e2e.tools import third_party

pytestmark = pytest.mark.timeout(600)  # the first run downloads the modules


def test_kinds_and_versions() -> None:
    served = {}
    for file in third_party.definitions(print):
        definition = yaml.safe_load(file.read_text())
        assert definition["kind"] == "CustomResourceDefinition"
        spec = definition["spec"]
        versions = {version["name"] for version in spec["versions"] if version["served"]}
        served[spec["names"]["kind"]] = f"{spec['group']}/{'|'.join(sorted(versions))}"
    assert served == {
        "Certificate": "cert-manager.io/v1",
        "InferencePool": "inference.networking.k8s.io/v1",
        "Issuer": "cert-manager.io/v1",
        "PodMonitor": "monitoring.coreos.com/v1",
        "PrometheusRule": "monitoring.coreos.com/v1",
        "ServiceMonitor": "monitoring.coreos.com/v1",
    }
