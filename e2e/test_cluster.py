"""The cluster is a real one: what the other tests rely on is checked here."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster, ClusterError
from e2e.cluster.binaries import VERSION

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

EXAMPLE = Path(__file__).parent / "cluster" / "example.yaml"

WINDOW = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "windows.example.test"},
    "spec": {
        "group": "example.test",
        "names": {"kind": "Window", "plural": "windows"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "first": {"type": "integer"},
                            "last": {"type": "integer"},
                        },
                        "x-kubernetes-validations": [
                            {"rule": "self.first <= self.last", "message": "first after last"}
                        ],
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def example(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster with the example's pod, ready."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "greeting").write_text("hello")
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    text = EXAMPLE.read_text().replace("IMAGE", cluster.image).replace("FOLDER", str(folder))
    cluster.kubectl("apply", "-f", "-", input=text)
    in_example(cluster, "wait", "--for=condition=Ready", "pod/web", "--timeout=50s")
    return cluster


def in_example(cluster: Cluster, *arguments: str, input: str | None = None) -> str:
    return cluster.kubectl("--namespace=example", *arguments, input=input)


def run_in_pod(cluster: Cluster, container: str, *command: str) -> str:
    return in_example(cluster, "exec", "web", f"--container={container}", "--", *command)


def field(cluster: Cluster, kind: str, name: str, path: str) -> str:
    return in_example(cluster, "get", kind, name, f"--output=jsonpath={{{path}}}")


def fetch(url: str) -> str:
    """Retried for a moment: kube-proxy learns of an endpoint shortly after the pod is ready."""
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return str(response.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_every_part_has_the_version(cluster: Cluster) -> None:
    versions = json.loads(cluster.kubectl("version", "--output=json"))
    node = json.loads(cluster.kubectl("get", "node", "node", "--output=json"))
    assert versions["clientVersion"]["gitVersion"] == VERSION
    assert versions["serverVersion"]["gitVersion"] == VERSION
    assert node["status"]["nodeInfo"]["kubeletVersion"] == VERSION


def test_rbac_denies_what_no_role_allows(cluster: Cluster) -> None:
    account = "--as=system:serviceaccount:default:default"
    with pytest.raises(ClusterError, match="Forbidden"):
        cluster.kubectl("get", "secrets", account)


def test_a_cel_rule_rejects_a_bad_object(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", input=json.dumps(WINDOW))
    cluster.kubectl("wait", "--for=condition=Established", "crd/windows.example.test")
    window = {"apiVersion": "example.test/v1", "kind": "Window", "metadata": {"name": "one"}}
    cluster.kubectl("create", "-f", "-", input=json.dumps(window | {"first": 1, "last": 2}))
    window["metadata"] = {"name": "two"}
    with pytest.raises(ClusterError, match="first after last"):
        cluster.kubectl("create", "-f", "-", input=json.dumps(window | {"first": 2, "last": 1}))


def test_a_restricted_pod_is_reached_through_its_service(example: Cluster) -> None:
    address = field(example, "service", "web", ".spec.clusterIP")
    assert fetch(f"http://{address}/greeting") == "hello"


def test_a_pod_reaches_itself_through_its_service(example: Cluster) -> None:
    address = field(example, "service", "web", ".spec.clusterIP")
    program = f"import urllib.request as u; print(u.urlopen('http://{address}/greeting').read())"
    fetch(f"http://{address}/greeting")
    assert run_in_pod(example, "sidecar", "python3", "-c", program) == "b'hello'\n"


def test_the_host_reaches_a_pod_by_its_address(example: Cluster) -> None:
    address = field(example, "pod", "web", ".status.podIP")
    assert "Directory listing" in fetch(f"http://{address}:8081/")


def test_a_pod_resolves_the_name_of_a_service(example: Cluster) -> None:
    address = field(example, "service", "web", ".spec.clusterIP")
    program = "import socket; print(socket.gethostbyname('web.example'))"
    assert run_in_pod(example, "sidecar", "python3", "-c", program) == f"{address}\n"


def test_another_pod_reaches_it_through_its_service(example: Cluster) -> None:
    address = field(example, "service", "web", ".spec.clusterIP")
    fetch(f"http://{address}/greeting")
    program = f"import urllib.request as u; print(u.urlopen('http://{address}/greeting').read())"
    example.kubectl(
        "run", "client", f"--image={example.image}", "--image-pull-policy=Never",
        "--restart=Never", "--command", "--", "python3", "-c", program,
    )  # fmt: skip
    example.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/client")
    assert example.kubectl("logs", "client") == "b'hello'\n"


def test_a_pod_reaches_the_api_server(example: Cluster) -> None:
    program = """
import os, ssl, urllib.request
trust = ssl.create_default_context(cafile="/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/readyz"
print(urllib.request.urlopen(url, context=trust).read())
"""
    assert run_in_pod(example, "app", "python3", "-c", program) == "b'ok'\n"


def test_a_port_is_forwarded(example: Cluster) -> None:
    kubectl = [str(example.binaries.path("kubectl")), f"--kubeconfig={example.kubeconfig}"]
    command = [*kubectl, "--namespace=example", "port-forward", "pod/web", ":8080"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout
        address = forwarding.stdout.readline().removeprefix("Forwarding from ").split()[0]
        assert fetch(f"http://{address}/greeting") == "hello"
        forwarding.terminate()


def test_host_aliases_resolve_without_dns(example: Cluster) -> None:
    program = "import urllib.request as u; print(u.urlopen('http://sidecar.example:8081').status)"
    assert run_in_pod(example, "app", "python3", "-c", program) == "200\n"


def test_the_log_of_a_container_is_read(example: Cluster) -> None:
    fetch(f"http://{field(example, 'pod', 'web', '.status.podIP')}:8080/greeting")
    assert "GET /greeting" in in_example(example, "logs", "web", "--container=app")


def test_a_pod_runs_without_rights(example: Cluster) -> None:
    status = run_in_pod(example, "app", "cat", "/proc/self/status")
    assert "Uid:\t65532" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


@pytest.mark.parametrize("folder", ["/", "/folder", "/tmp"])
def test_root_and_mounted_folder_are_read_only(example: Cluster, folder: str) -> None:
    with pytest.raises(ClusterError, match="Read-only file system"):
        run_in_pod(example, "app", "sh", "-c", f"echo > {folder}/file")


def test_the_containers_share_a_volume_in_memory(example: Cluster) -> None:
    run_in_pod(example, "app", "sh", "-c", "echo shared > /shared/file")
    assert run_in_pod(example, "sidecar", "cat", "/shared/file") == "shared\n"
    assert "tmpfs /shared" in run_in_pod(example, "app", "cat", "/proc/mounts")


def review(cluster: Cluster, token: str, audience: str) -> dict[str, Any]:
    question = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    answer = cluster.kubectl("create", "-f", "-", "--output=json", input=json.dumps(question))
    return dict(json.loads(answer)["status"])


def test_a_token_for_one_audience_names_its_pod(example: Cluster) -> None:
    token = run_in_pod(example, "sidecar", "cat", "/var/run/secrets/example/token")
    status = review(example, token, "example")
    assert status["authenticated"] is True
    assert status["user"]["username"] == "system:serviceaccount:example:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["web"]
    assert not review(example, token, "another").get("authenticated")


def test_pod_security_refuses_a_host_path(example: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bad"},
        "spec": {
            "containers": [{"name": "app", "image": example.image}],
            "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
        },
    }
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        in_example(example, "create", "-f", "-", input=json.dumps(pod))


def test_an_ownerless_object_is_collected(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "owner")
    uid = cluster.kubectl("get", "configmap", "owner", "--output=jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [owner]},
    }
    cluster.kubectl("create", "-f", "-", input=json.dumps(owned))
    cluster.kubectl("delete", "configmap", "owner")
    cluster.kubectl("wait", "--for=delete", "configmap/owned", "--timeout=30s")
