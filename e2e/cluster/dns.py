import json
from pathlib import Path

from e2e.cluster.control_plane import Credentials
from e2e.cluster.namespaces import Part
from e2e.cluster.network import Network

DOMAIN = "cluster.local"
USER = "system:coredns"
RULES = [
    {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    },
]
READY_PORT = 8181


def rights() -> list[dict[str, object]]:
    api, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    return [
        {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": USER}, "rules": RULES},
        {
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": USER},
            "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
        },
    ]


def coredns(program: Path, state: Path, credentials: Credentials, network: Network) -> Part:
    """Answers for Services only, on the node's address; other names are refused."""
    config = state / "Corefile"
    kubeconfig = json.dumps(str(credentials.kubeconfigs["coredns"]))
    config.write_text(
        f"""\
{DOMAIN}:53 {{
    bind {network.node_address}
    ready {network.node_address}:{READY_PORT}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig {kubeconfig}
        pods disabled
        ttl 5
    }}
}}
"""
    )
    return Part("coredns", [str(program), f"-conf={config}"])
