"""The pods of a large fleet: objects of a real API server that no node runs, with bound tokens."""

from __future__ import annotations

from dataclasses import dataclass

from bench.kube_admin import Json, KubeAdmin
from e2e.nodeless_pod import pod_manifest, running_status
from promptprefix.wire import AUDIENCE

TOKEN_SECONDS = 7200
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class PodOfFleet:
    """A pod of the API server, and the token that proves it."""

    name: str
    uid: str
    address: str
    token: str


def team(index: int, teams: int) -> str:
    """Return the label of the pods that one team's prefixes select."""
    return f"team-{index % teams}"


async def make_pods(admin: KubeAdmin, namespace: str, count: int, teams: int) -> list[PodOfFleet]:
    """Create running pods with addresses, spread over zones and teams, and their tokens."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = await admin.send_all(
        ("POST", pods, _pod(namespace, index, teams), "application/json") for index in range(count)
    )
    names = [(each["metadata"]["name"], each["metadata"]["uid"]) for each in made]
    await admin.send_all(
        ("PATCH", f"{pods}/{name}/status", running_status(_address(index)), MERGE)
        for index, (name, _) in enumerate(names)
    )
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts/vllm/token"
    tokens = await admin.send_all(
        ("POST", accounts, _token_request(name, uid), "application/json") for name, uid in names
    )
    return [
        PodOfFleet(name, uid, _address(index), token["status"]["token"])
        for index, ((name, uid), token) in enumerate(zip(names, tokens, strict=True))
    ]


def _address(index: int) -> str:
    return f"10.20.{index // 250}.{index % 250 + 1}"


def _pod(namespace: str, index: int, teams: int) -> Json:
    labels = {
        "app": "fleet",
        "team": team(index, teams),
        "topology.kubernetes.io/zone": f"zone-{index % 3}",
    }
    return pod_manifest(namespace, f"fleet-{index}", labels)


def _token_request(name: str, uid: str) -> Json:
    reference = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": [AUDIENCE],
            "boundObjectRef": reference,
            "expirationSeconds": TOKEN_SECONDS,
        },
    }
