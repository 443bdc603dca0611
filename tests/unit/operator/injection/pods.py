"""Pods as they are created by those whom injection must understand, in our own words."""

from __future__ import annotations

import copy
from typing import Any

from promptprefix import annotations as marks
from promptprefix_operator.injection.options import InjectionOptions

Json = dict[str, Any]

OPTIONS = InjectionOptions(
    sidecar_image="registry.example/promptprefix-sidecar:1",
    plugin_image="registry.example/promptprefix-plugin:1",
    control_url="https://promptprefix-operator.promptprefix-system.svc:8443",
    namespaces=frozenset({"ml"}),
)
SCHEDULER = ["--scheduler-cls", "promptprefix_vllm.scheduler.scheduler_class"]
SECRET = {"secretKeyRef": {"name": "keys", "key": "vllm"}}


def container(**fields: Any) -> Json:
    """Return a container that runs ``vllm serve``; None leaves a field out."""
    given = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": ["vllm", "serve", "m"]}
    return {name: value for name, value in {**given, **fields}.items() if value is not None}


def pod(*containers: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Return a pod that asks for injection."""
    metadata: Json = {"generateName": "vllm-", "labels": {"app": "vllm", marks.INJECT: "true"}}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers or [container()]), **spec},
    }


def plain() -> Json:
    """Return a pod of a manifest like those in vLLM's documentation."""
    engine = container(
        command=["/bin/sh", "-c"],
        args=["vllm serve mistralai/Mistral-7B --trust-remote-code --port 8000"],
        env=[{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        ports=[{"containerPort": 8000}],
    )
    return pod(engine)


def production_stack() -> Json:
    """Return a pod of the chart vllm-stack: the whole command line in ``command``."""
    engine = container(
        image="lmcache/vllm-openai:v0.3.9",
        command=[
            *("/opt/venv/bin/vllm", "serve", "meta/llama", "--host", "0.0.0.0", "--port", "8000"),  # noqa: S104
            *("--enable-prefix-caching", "--gpu_memory_utilization", "0.9"),
        ],
        env=[
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_API_KEY", "valueFrom": SECRET},
        ],
        envFrom=[{"configMapRef": {"name": "stack-configs"}}],
        ports=[
            {"name": "container-port", "containerPort": 8000, "protocol": "TCP"},
            {"name": "zmq-port", "containerPort": 55555, "protocol": "TCP"},
        ],
    )
    return pod(engine)


def llm_d() -> Json:
    """Return a decode pod of the chart llm-d-modelservice: a routing proxy before vLLM."""
    proxy = {
        "name": "routing-proxy",
        "image": "ghcr.io/llm-d/llm-d-routing-sidecar:latest",
        "args": ["--port=8000", "--vllm-port=8200"],
        "restartPolicy": "Always",
        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
    }
    engine = container(
        image="ghcr.io/llm-d/llm-d-cuda:latest",
        command=["vllm", "serve"],
        args=["facebook/opt-125m", "--port", "8200", "--kv-transfer-config", '{"kv_role":"both"}'],
        ports=[{"containerPort": 8200, "protocol": "TCP"}],
    )
    return pod(engine, initContainers=[proxy])


def kserve_runtime() -> Json:
    """Return a pod of KServe's vLLM runtime."""
    engine = container(
        name="kserve-container",
        command=["python", "-m", "vllm.entrypoints.openai.api_server"],
        args=["--port=8080", "--served-model-name=m", "--model=/mnt/models"],
        env=[{"name": "LMCACHE_USE_EXPERIMENTAL", "value": "True"}],
        volumeMounts=[{"name": "devshm", "mountPath": "/dev/shm"}],
    )
    proxy = {"name": "queue-proxy", "image": "knative/queue", "ports": [{"containerPort": 8012}]}
    return pod(engine, proxy, volumes=[{"name": "devshm", "emptyDir": {"medium": "Memory"}}])


def kserve_args() -> Json:
    """Return a pod of KServe with arguments for the image's entry point."""
    engine = container(
        name="kserve-container",
        command=None,
        args=["--model", "/mnt/models", "--port", "8080"],
    )
    return pod(engine, {"name": "agent", "image": "kserve/agent"})


def kserve_llm() -> Json:
    """Return a pod of KServe's LLMInferenceService: a script that forwards its arguments."""
    script = (
        "# it doesn't matter what comes before\n"
        'if [ "${#active[@]}" -gt 0 ]; then\n  export NCCL_IB_HCA="a"\nfi\n'
        'eval "exec vllm serve /mnt/models \\\n'
        '  --served-model-name "qwen" "publishers/ml/models/qwen" \\\n'
        "  --port 8000 \\\n  ${ACCESS_LOG_ARGS} \\\n"
        "  --ssl-certfile /var/run/kserve/tls/tls.crt \\\n"
        "  --ssl-keyfile /var/run/kserve/tls/tls.key \\\n"
        '  ${VLLM_ADDITIONAL_ARGS} \\\n  $@"\n'
    )
    engine = container(
        name="main",
        image="ghcr.io/llm-d/llm-d-cuda:v0.9.0",
        command=["/bin/bash", "-c", script, "--"],
    )
    return pod(engine)


def patched(pod: Json, operations: Any) -> Json:
    """Return ``pod`` after a JSON patch of ours."""
    result: Json = copy.deepcopy(pod)
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        target: Any = result
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        _apply(target, last, operation)
    return result


def _apply(target: Any, last: str, operation: Json) -> None:
    value = copy.deepcopy(operation.get("value"))
    if isinstance(target, dict):
        if operation["op"] != "add":
            assert last in target
        if operation["op"] == "remove":
            del target[last]
        else:
            target[last] = value
    elif last == "-":
        target.append(value)
    elif operation["op"] == "add":
        target.insert(int(last), value)
    else:
        assert operation["op"] == "replace"
        target[int(last)] = value
