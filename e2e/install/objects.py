"""All objects of a cluster, to see what an installation leaves behind."""

from __future__ import annotations

import json

from e2e.install.programs import Kubectl

_COMES_AND_GOES = {"events", "events.events.k8s.io", "leases.coordination.k8s.io"}


def objects(kubectl: Kubectl) -> frozenset[str]:
    """Return ``resource namespace/name`` of every object that can be listed."""
    names = kubectl("api-resources", "--verbs=list", "-o", "name").split()
    found: set[str] = set()
    for resource in sorted(set(names) - _COMES_AND_GOES):
        for item in json.loads(kubectl("get", resource, "-A", "-o", "json"))["items"]:
            metadata = item["metadata"]
            found.add(f"{resource} {metadata.get('namespace', '')}/{metadata['name']}")
    for lease in kubectl.read("leases", "-A")["items"]:
        if not lease["metadata"]["namespace"].startswith("kube-"):
            found.add(f"lease {lease['metadata']['namespace']}/{lease['metadata']['name']}")
    return frozenset(found)
