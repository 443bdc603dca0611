import json
from pathlib import Path

from e2e.cluster.binaries import Binaries
from e2e.cluster.control_plane import NODE_NAME, Credentials
from e2e.cluster.dns import DOMAIN
from e2e.cluster.namespaces import Part
from e2e.cluster.network import Network

CNI_PLUGINS = Path("/usr/lib/cni")


def containerd_socket(state: Path) -> Path:
    return state / "containerd.sock"


def containerd(state: Path, network: Network, sandbox_image: str) -> Part:
    folder = state / "cni"
    folder.mkdir()
    (folder / "10-pods.conflist").write_text(json.dumps(_pod_network(network)))
    config = state / "containerd.toml"
    config.write_text(_containerd_config(state, folder, sandbox_image))
    return Part("containerd", ["containerd", f"--config={config}"])


def kubelet(binaries: Binaries, state: Path, cgroup: str, credentials: Credentials,
            network: Network) -> Part:  # fmt: skip
    config = state / "kubelet.json"
    config.write_text(json.dumps(_kubelet_config(state, cgroup, credentials, network), indent=1))
    return Part(
        "kubelet",
        [
            str(binaries.path("kubelet")),
            f"--config={config}",
            f"--kubeconfig={credentials.kubeconfigs['kubelet']}",
            f"--root-dir={state}/kubelet",
            f"--cert-dir={state}/kubelet/pki",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={network.node_address}",
        ],
    )


def kube_proxy(binaries: Binaries, state: Path, credentials: Credentials,
               network: Network) -> Part:  # fmt: skip
    config = state / "kube-proxy.json"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "clientConnection": {"kubeconfig": str(credentials.kubeconfigs["kube-proxy"])},
                "mode": "iptables",
                "clusterCIDR": network.pods,
                "hostnameOverride": NODE_NAME,
                # Connection tracking limits belong to the whole kernel.
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
                "iptables": {"minSyncPeriod": "0s"},
                "oomScoreAdj": 0,
            },
            indent=1,
        )
    )
    return Part("kube-proxy", [str(binaries.path("kube-proxy")), f"--config={config}"])


def _pod_network(network: Network) -> dict[str, object]:
    # A routed link per pod instead of a bridge: traffic between two pods of the node then always
    # passes the packet filter, so Services work without the kernel's br_netfilter module.
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni/networks",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _containerd_config(state: Path, cni: Path, sandbox_image: str) -> str:
    # JSON strings are TOML strings, so paths are quoted by json.dumps.
    quoted = {
        "root": json.dumps(f"{state}/containerd"),
        "socket": json.dumps(str(containerd_socket(state))),
        "opt": json.dumps(f"{state}/opt"),
        "sandbox": json.dumps(sandbox_image),
        "plugins": json.dumps(str(CNI_PLUGINS)),
        "cni": json.dumps(str(cni)),
    }
    # restrict_oom_score_adj: lowering a score takes CAP_SYS_RESOURCE, which containers and small
    # virtual machines often lack; without this every sandbox would fail to start there.
    return """\
version = 2
root = {root}
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = {socket}

[plugins."io.containerd.internal.v1.opt"]
path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {sandbox}
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {cni}
""".format(**quoted)


def _kubelet_config(
    state: Path, cgroup: str, credentials: Credentials, network: Network
) -> dict[str, object]:
    resolver = state / "resolv.conf"
    # For pods with dnsPolicy Default. Nothing listens there: a look-up of a name fails at once
    # instead of after a time-out.
    resolver.write_text("nameserver 127.0.0.1\n")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{containerd_socket(state)}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.authority.files.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(credentials.kubelet_server.certificate),
        "tlsPrivateKeyFile": str(credentials.kubelet_server.key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "resolvConf": str(resolver),
        "clusterDNS": [network.node_address],
        "clusterDomain": DOMAIN,
        "volumePluginDir": f"{state}/kubelet/volume-plugins",
        "maxPods": 40,
        # Pods see a changed ConfigMap after this long: the CA is published while they start.
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        # The node shares its disk with the machine, which may be nearly full.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    }
