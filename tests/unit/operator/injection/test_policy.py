"""What a pod gets, and the reasons it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptprefix import annotations as marks
from promptprefix_operator.injection.injector import inject

from . import pods
from .pods import OPTIONS, SCHEDULER, SECRET, Json, container, patched, pod
from .views import engine, injected, sidecar, variables


def serve(*words: str, **fields: Any) -> Json:
    return pod(container(command=["vllm", "serve", "m", *words], **fields))


def named(name: str, *containers: Json) -> Json:
    return pod(*containers, annotations={marks.CONTAINER: name})


REFUSED: dict[str, tuple[Json, str]] = {
    "a Unix socket": (serve("--uds", "/tmp/s"), "--uds"),
    "gRPC": (serve("--grpc"), "--grpc"),
    "no API": (serve("--headless"), "--headless"),
    "a follower": (serve("--nnodes", "2", "--node-rank", "1"), "--node-rank"),
    "a follower, joined": (serve("-r1"), "--node-rank"),
    "a follower or not": (serve("--node-rank=$(RANK)"), "--node-rank"),
    "client certificates": (
        serve("--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-cert-reqs", "2"),
        "--ssl-cert-reqs",
    ),
    "no cache": (serve("--no-enable-prefix-caching"), "--no-enable-prefix-caching"),
    "ranks": (serve("--data-parallel-size", "2"), "--data-parallel-size"),
    "ranks, unknown": (serve("-dp", "$(N)"), "--data-parallel-size"),
    "ranks on ports": (serve("-dp", "2", "-dpm"), "--data-parallel-size"),
    "the sidecar's port": (serve("--port", "8090"), "8090"),
    "an unknown port": (
        serve("--port", "$(P)", env=[{"name": "P", "valueFrom": SECRET}]),
        "--port",
    ),
    "a broken port": (serve("--port", "70000"), "--port"),
    "a key of many": (
        serve("--api-key", "$(KEY)", envFrom=[{"secretRef": {"name": "all"}}]),
        "API key",
    ),
    "another's port": (
        pod(container(), {"name": "exporter", "ports": [{"containerPort": 8090}]}),
        "'exporter'",
    ),
    "another's container": (pod(container(), {"name": "promptprefix-key"}), "promptprefix-key"),
    "another's volume": (
        pod(volumes=[{"name": "promptprefix-ca", "emptyDir": {}}]),
        "promptprefix-ca",
    ),
    "a false sidecar": (
        pod(initContainers=[{"name": "promptprefix-sidecar", "image": "x"}]),
        "promptprefix-sidecar",
    ),
    "two engines": (pod(container(name="a"), container(name="b")), "'a', 'b'"),
    "no engine": (pod(container(image="nginx", command=["nginx"])), marks.CONTAINER),
    "nothing certain": (pod({"name": "a", "image": "x"}, {"name": "b"}), marks.CONTAINER),
    "a Ray worker": (
        pod(container(command=["bash", "-c", "ray start --address=$HEAD --block"])),
        marks.CONTAINER,
    ),
    "no such container": (named("other", container()), marks.CONTAINER),
    "KServe's own server": (
        pod({"name": "kserve-container", "image": "kserve/huggingfaceserver:v1", "args": ["--a"]}),
        "huggingfaceserver",
    ),
    "more than is read": (serve(env=[{"name": "A", "value": "x" * 131_072}]), "too long"),
    "the node's network": (pod(hostNetwork=True), "hostNetwork"),
    "companions alone": (
        pod(
            {"name": "a", "image": "vllm-project/extproc"}, {"name": "b", "image": "vllm-exporter"}
        ),
        marks.CONTAINER,
    ),
    "Windows": (pod(os={"name": "windows"}), "Windows"),
    "Windows by label": (pod(nodeSelector={"kubernetes.io/os": "windows"}), "Windows"),
}


@pytest.mark.parametrize(("before", "word"), REFUSED.values(), ids=REFUSED)
def test_a_pod_that_gets_nothing_is_told_why(before: Json, word: str) -> None:
    injection, after = injected(before)
    assert injection.result == "none"
    assert word in injection.message
    assert after["spec"] == before["spec"]
    written = after["metadata"]["annotations"]
    assert written[marks.INJECTED] == "none"
    assert written[marks.INJECTION_MESSAGE] == injection.message


SOFT: dict[str, tuple[Json, str]] = {
    "another scheduler": (serve("--scheduler-cls=a.B"), "--scheduler-cls of its own"),
    "another scheduler, cut": (serve("--scheduler_c", "a.B"), "--scheduler-cls of its own"),
    "the last scheduler": (serve(*SCHEDULER, "--scheduler-cls", "a.B"), "of its own"),
    "the old engine": (serve(env=[{"name": "VLLM_USE_V1", "value": "0"}]), "VLLM_USE_V1"),
    "an old image": (serve(image="vllm/vllm-openai:v0.6.3"), "newer image"),
    "a script": (pod(container(command=["sh", "-c", "vllm serve m"])), "shell script"),
    "a script without $0": (
        pod(container(command=["sh", "-c", 'vllm serve m "$@"'])),
        "shell script",
    ),
    "an end of options": (serve("--"), "'--'"),
    "an image alone": (pod(container(command=None)), "give args"),
    "an unknown image": (
        pod({"name": "llm", "image": "vllm.example:5000/team/llm:1", "args": ["--model=m"]}),
        marks.CONTAINER,
    ),
    "a wrapper": (named("vllm", container(command=["/start.sh"])), "may not pass"),
    "one rank of many": (serve("-dp", "2", "--data-parallel-rank", "1"), "data parallelism"),
    "a context in parallel": (serve("-dcp", "2"), "context parallelism"),
    "isolated Python": (
        pod(container(command=["python3", "-I", "-m", "vllm.entrypoints.openai.api_server"])),
        "-E or -I",
    ),
    "a mount in the place": (
        serve(volumeMounts=[{"name": "x", "mountPath": "/opt/promptprefix/"}]),
        "/opt/promptprefix",
    ),
    "a mount below": (
        serve(volumeMounts=[{"name": "x", "mountPath": "/opt/promptprefix/sub"}]),
        "/opt/promptprefix",
    ),
    "a mount above": (
        serve(volumeMounts=[{"name": "x", "mountPath": "/opt"}]),
        "/opt/promptprefix",
    ),
    "a key of its own": (
        serve(env=[{"name": "PROMPTPREFIX_KEY_FILE", "value": "/key"}]),
        "PROMPTPREFIX_KEY_FILE",
    ),
    "our helper's name": (
        serve(env=[{"name": "PROMPTPREFIX_PYTHONPATH", "value": "/a"}]),
        "PROMPTPREFIX_PYTHONPATH",
    ),
}


@pytest.mark.parametrize(("before", "word"), SOFT.values(), ids=SOFT)
def test_a_pod_that_gets_the_sidecar_alone_is_told_why(before: Json, word: str) -> None:
    injection, after = injected(before)
    assert injection.result == "soft"
    assert word in injection.message
    assert after["spec"]["containers"] == before["spec"]["containers"]
    assert sidecar(after)["image"] == OPTIONS.sidecar_image
    assert after["metadata"]["annotations"][marks.INJECTION_MESSAGE] == injection.message


WORKING: dict[str, tuple[Json, str]] = {
    "a config file": (serve("--config", "/c.yaml"), "--config"),
    "loopback": (serve("--host", "127.0.0.1"), "router"),
    "TLS": (serve("--ssl-certfile", "c", "--ssl-keyfile", "k"), "TLS"),
    "many sources": (serve(envFrom=[{"configMapRef": {"name": "all"}}]), "VLLM_API_KEY"),
    "a path of the script": (
        pod(container(command=["sh", "-c", f"PYTHONPATH=/a vllm serve m {' '.join(SCHEDULER)}"])),
        "PYTHONPATH",
    ),
}


@pytest.mark.parametrize(("before", "word"), WORKING.values(), ids=WORKING)
def test_a_pod_that_works_is_told_what_to_mind(before: Json, word: str) -> None:
    injection, _ = injected(before)
    assert injection.result == "hard"
    assert word in injection.message


QUIET: dict[str, Json] = {
    "a single rank": serve("--data-parallel-size", "1", "--node-rank", "0"),
    "caching, given twice": serve("--no-enable-prefix-caching", "--enable-prefix-caching"),
    "a root path": serve("--root-path", "/llm"),
    "UDP": pod(container(), {"name": "x", "ports": [{"containerPort": 8090, "protocol": "UDP"}]}),
    "an emptyDir above": pod(
        container(volumeMounts=[{"name": "run", "mountPath": "/run"}]),
        volumes=[{"name": "run", "emptyDir": {}}],
    ),
    "a mount beside": serve(volumeMounts=[{"name": "x", "mountPath": "/opt/promptprefixes"}]),
    "a build of an old name": serve(image="lmcache/vllm-openai:v0.3.9"),
    "an init system": pod(container(command=["/usr/bin/tini", "--", "vllm", "serve", "m"])),
    "a named container": named("b", container(name="a"), container(name="b")),
    "an image that the annotation names": named(
        "llm", {"name": "llm", "image": "x", "args": ["--model", "m"]}
    ),
}


@pytest.mark.parametrize("before", QUIET.values(), ids=QUIET)
def test_a_pod_that_works_is_told_nothing(before: Json) -> None:
    injection, after = injected(before)
    assert (injection.result, injection.message) == ("hard", "")
    assert marks.INJECTION_MESSAGE not in after["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("words", "fields", "url"),
    [
        ((), {}, "http://127.0.0.1:8000"),
        (("--port", "9000", "--port=9001"), {}, "http://127.0.0.1:9001"),
        (("--host", "::"), {}, "http://127.0.0.1:8000"),
        (("--host", "localhost"), {}, "http://127.0.0.1:8000"),
        (("--host", "::1"), {}, "http://[::1]:8000"),
        (("--host", "10.0.0.7"), {}, "http://10.0.0.7:8000"),
        (("--host", "vllm-0.vllm"), {}, "http://vllm-0.vllm:8000"),
        (("--host", "$(HOST)"), {}, "http://$(PROMPTPREFIX_POD_IP):8000"),
        (("--ssl-keyfile", "k", "--ssl-certfile", "c"), {}, "https://127.0.0.1:8000"),
        (("--port", "$(P)"), {"env": [{"name": "P", "value": "7000"}]}, "http://127.0.0.1:7000"),
        ((), {"ports": [{"containerPort": 9999}]}, "http://127.0.0.1:8000"),
    ],
)
def test_engine_url(words: tuple[str, ...], fields: Json, url: str) -> None:
    _, after = injected(serve(*words, **fields))
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_URL"] == url


def test_a_hidden_command_is_found_by_its_only_port() -> None:
    _, after = injected(
        named("vllm", container(command=["/start.sh"], ports=[{"containerPort": 9000}]))
    )
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_URL"] == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        (("--api-key", "one", "two"), [], "one"),
        (("--api-key=$(KEY)",), [{"name": "KEY", "valueFrom": SECRET}], SECRET),
        ((), [{"name": "VLLM_API_KEY", "valueFrom": SECRET}], SECRET),
        ((), [{"name": "VLLM_API_KEY", "value": "a$$b"}], "a$$b"),
        (("--api-key", "one"), [{"name": "VLLM_API_KEY", "valueFrom": SECRET}], "one"),
        (("--api-key=",), [{"name": "VLLM_API_KEY", "value": "env"}], None),
        ((), [{"name": "VLLM_API_KEY", "value": ""}], None),
    ],
)
def test_api_key(words: tuple[str, ...], env: list[Json], expected: object) -> None:
    injection, after = injected(serve(*words, env=env))
    assert injection.result == "hard"
    assert variables(sidecar(after)).get("PROMPTPREFIX_ENGINE_API_KEY") == expected


def test_a_key_of_a_script() -> None:
    script = 'exec vllm serve m --api-key "$LLM_KEY"'
    env = [{"name": "LLM_KEY", "valueFrom": SECRET}]
    _, after = injected(pod(container(command=["sh", "-c", script], env=env)))
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_API_KEY"] == SECRET


def test_keys_stand_in_no_message() -> None:
    key = "sk-very-secret"
    for words in (("--api-key", key), ("--api-key", key, "--scheduler-cls", key), ("--port", key)):
        injection, after = injected(serve(*words))
        assert key not in injection.message
        assert key not in str(after["metadata"])
        assert key not in repr(injection.sentences)


def test_time_zone() -> None:
    _, after = injected(serve(env=[{"name": "TZ", "value": "Europe/Berlin"}]))
    assert variables(sidecar(after))["TZ"] == "Europe/Berlin"


@pytest.mark.parametrize(
    ("change", "namespace", "word"),
    [
        ({"labels": {marks.INJECT: "false"}}, "ml", "label"),
        ({"labels": None}, "ml", "label"),
        (
            {"labels": {marks.INJECT: "true"}, "annotations": {marks.INJECT: "false"}},
            "ml",
            "declines",
        ),
    ],
)
def test_a_pod_that_does_not_ask_is_left_alone(change: Json, namespace: str, word: str) -> None:
    injection = inject({**pod(), "metadata": change}, namespace, OPTIONS)
    assert (injection.result, injection.operations) == ("none", ())
    assert word in injection.message


def test_a_namespace_that_is_not_served() -> None:
    injection = inject(pod(), "other", OPTIONS)
    assert injection.result == "none"
    assert "namespace other" in injection.message


def test_what_was_said_before_is_withdrawn() -> None:
    before = pod(annotations={marks.INJECTED: "none", marks.INJECTION_MESSAGE: "Old."})
    _, after = injected(before)
    assert after["metadata"]["annotations"] == {marks.INJECTED: "hard"}


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"containers": [{"image": "x"}]}}])
def test_what_is_no_pod_is_left_alone(broken: Json) -> None:
    injection = inject(broken, "ml", OPTIONS)
    assert (injection.result, injection.operations) == ("none", ())


EQUAL = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}}
WANTED = OPTIONS.resources


@pytest.mark.parametrize(
    ("engines", "spec", "expected"),
    [
        (None, {}, WANTED),
        ({"limits": {"nvidia.com/gpu": "1"}}, {}, WANTED),
        (
            EQUAL,
            {},
            {
                "requests": {"cpu": "100m", "memory": "256Mi"},
                "limits": {"cpu": "100m", "memory": "256Mi"},
            },
        ),
        (
            {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "1", "memory": "8Gi"}},
            {},
            {**WANTED, "limits": {"cpu": "1", "memory": "256Mi"}},
        ),
        (None, {"resources": EQUAL}, None),
    ],
)
def test_resources_fit_the_pods(engines: Json | None, spec: Json, expected: Json | None) -> None:
    before = pod(container(resources=engines), **spec)
    _, after = injected(before)
    for ours in after["spec"]["initContainers"]:
        assert ours.get("resources") == expected


def test_options_are_used() -> None:
    options = replace(OPTIONS, pull_policy="Never", resources={"limits": {"memory": "1Gi"}})
    injection = inject(pods.llm_d(), "ml", options)
    after = patched(pods.llm_d(), injection.operations)
    ours = after["spec"]["initContainers"][1:]
    assert {each["imagePullPolicy"] for each in ours} == {"Never"}
    assert [each["image"] for each in ours] == [
        options.plugin_image,
        options.sidecar_image,
        options.sidecar_image,
    ]
    assert variables(sidecar(after))["PROMPTPREFIX_CONTROL_URL"] == options.control_url
    assert engine(after)["args"][-2:] == SCHEDULER


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (65532, {"runAsUser": 65532, "runAsGroup": 65532}),
        (2000, {"runAsUser": 2000, "runAsGroup": 2000}),
        (None, {}),
    ],
)
def test_the_user_of_our_containers(user: int | None, expected: Json) -> None:
    injection = inject(pods.llm_d(), "ml", replace(OPTIONS, run_as_user=user))
    after = patched(pods.llm_d(), injection.operations)
    contexts = [each["securityContext"] for each in after["spec"]["initContainers"][1:]]
    assert len(contexts) == 3
    for context in contexts:
        assert {key: context[key] for key in context if key.startswith("runAs")} == {
            "runAsNonRoot": True,
            **expected,
        }


@pytest.mark.parametrize(
    ("seconds", "text"), [(600.0, "600"), (0.5, "0.5"), (1234567.0, "1234567"), (1e9, "1000000000")]
)
def test_the_time_limit_of_readiness(seconds: float, text: str) -> None:
    injection = inject(pods.llm_d(), "ml", replace(OPTIONS, ready_timeout_s=seconds))
    after = patched(pods.llm_d(), injection.operations)
    assert variables(sidecar(after))["PROMPTPREFIX_READY_TIMEOUT_S"] == text
