from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binaries import Binaries
from e2e.cluster.namespaces import Part
from e2e.cluster.network import Network
from e2e.cluster.pki import Authority, KeyPair, service_account_keys, write_kubeconfig

ISSUER = "https://kubernetes.default.svc.cluster.local"
NODE_NAME = "node"

# User and group names that Kubernetes' built-in roles are bound to.
CLIENTS = {
    "admin": ("kubernetes-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kube-proxy": ("system:kube-proxy", None),
    "coredns": ("system:coredns", None),
    "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
}

# What `kubectl exec`, `logs` and `port-forward` need: the API server as a client of the kubelet.
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
KUBELET_CLIENT_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": KUBELET_CLIENT},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:kubelet-api-admin",
    },
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBELET_CLIENT}],
}


@dataclass(frozen=True)
class Credentials:
    authority: Authority
    etcd: KeyPair
    etcd_authority: KeyPair
    etcd_client: KeyPair
    apiserver: KeyPair
    kubelet_client: KeyPair
    kubelet_server: KeyPair
    service_accounts: KeyPair
    admin: KeyPair
    kubeconfigs: dict[str, Path]

    @classmethod
    def create(cls, state: Path, network: Network) -> "Credentials":
        folder = state / "pki"
        authority = Authority.create(folder, "ca")
        etcd_authority = Authority.create(folder, "etcd-ca")
        server = f"https://{network.node_address}:6443"
        clients = {name: authority.issue(name, *subject) for name, subject in CLIENTS.items()}
        return cls(
            authority=authority,
            etcd=etcd_authority.issue("etcd", "etcd", hosts=["127.0.0.1", "localhost"]),
            etcd_authority=etcd_authority.files,
            etcd_client=etcd_authority.issue("etcd-client", "kube-apiserver"),
            apiserver=authority.issue(
                "kube-apiserver",
                "kube-apiserver",
                hosts=[
                    network.node_address,
                    network.apiserver_service,
                    "127.0.0.1",
                    "localhost",
                    "kubernetes",
                    "kubernetes.default",
                    "kubernetes.default.svc",
                    "kubernetes.default.svc.cluster.local",
                ],
            ),
            kubelet_client=authority.issue(KUBELET_CLIENT, KUBELET_CLIENT),
            kubelet_server=authority.issue(
                "kubelet-server", NODE_NAME, hosts=[NODE_NAME, network.node_address]
            ),
            service_accounts=service_account_keys(folder),
            admin=clients["admin"],
            kubeconfigs={
                name: write_kubeconfig(
                    state / ("kubeconfig" if name == "admin" else f"pki/{name}.kubeconfig"),
                    server,
                    authority.files,
                    client,
                )
                for name, client in clients.items()
            },
        )


def etcd(binaries: Binaries, state: Path, credentials: Credentials) -> Part:
    files, authority = credentials.etcd, credentials.etcd_authority.certificate
    return Part(
        "etcd",
        [
            str(binaries.path("etcd")),
            "--name=etcd",
            f"--data-dir={state}/etcd",
            "--listen-client-urls=https://127.0.0.1:2379",
            "--advertise-client-urls=https://127.0.0.1:2379",
            "--client-cert-auth",
            f"--trusted-ca-file={authority}",
            f"--cert-file={files.certificate}",
            f"--key-file={files.key}",
            "--listen-peer-urls=https://127.0.0.1:2380",
            "--initial-advertise-peer-urls=https://127.0.0.1:2380",
            "--initial-cluster=etcd=https://127.0.0.1:2380",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={authority}",
            f"--peer-cert-file={files.certificate}",
            f"--peer-key-file={files.key}",
            # The data are thrown away with the cluster, so a power cut may take them too.
            "--unsafe-no-fsync",
        ],
    )


def apiserver(binaries: Binaries, network: Network, credentials: Credentials) -> Part:
    kubelet, etcd_client = credentials.kubelet_client, credentials.etcd_client
    authority = credentials.authority.files.certificate
    return Part(
        "kube-apiserver",
        [
            str(binaries.path("kube-apiserver")),
            f"--advertise-address={network.node_address}",
            "--secure-port=6443",
            f"--tls-cert-file={credentials.apiserver.certificate}",
            f"--tls-private-key-file={credentials.apiserver.key}",
            f"--client-ca-file={authority}",
            "--etcd-servers=https://127.0.0.1:2379",
            f"--etcd-cafile={credentials.etcd_authority.certificate}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={network.services}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={credentials.service_accounts.certificate}",
            f"--service-account-signing-key-file={credentials.service_accounts.key}",
            f"--kubelet-certificate-authority={authority}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
    )


def controller_manager(binaries: Binaries, network: Network, credentials: Credentials) -> Part:
    kubeconfig = credentials.kubeconfigs["kube-controller-manager"]
    authority = credentials.authority.files
    return Part(
        "kube-controller-manager",
        [
            str(binaries.path("kube-controller-manager")),
            *_own_api(kubeconfig),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={credentials.service_accounts.key}",
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            f"--service-cluster-ip-range={network.services}",
            # A claim that comes before its volume waits for this period, 15 s by default.
            "--pvclaimbinder-sync-period=1s",
        ],
    )


def scheduler(binaries: Binaries, credentials: Credentials) -> Part:
    kubeconfig = credentials.kubeconfigs["kube-scheduler"]
    return Part("kube-scheduler", [str(binaries.path("kube-scheduler")), *_own_api(kubeconfig)])


def _own_api(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
