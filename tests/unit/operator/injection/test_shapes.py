"""Pods of the usual deployments join, or are told what is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from promptprefix import annotations as marks

from . import pods
from .pods import OPTIONS, SCHEDULER, SECRET, Json, container, pod
from .views import assert_kept, engine, injected, sidecar, variables

HARD: list[Callable[[], Json]] = [
    pods.production_stack,
    pods.llm_d,
    pods.kserve_runtime,
    pods.kserve_args,
    pods.kserve_llm,
]


@pytest.mark.parametrize("shape", HARD)
def test_the_plugin_is_loaded(shape: Callable[[], Json]) -> None:
    injection, after = injected(shape())
    assert injection.result == "hard", injection.message
    assert after["metadata"]["annotations"][marks.INJECTED] == "hard"
    words = [*engine(after).get("command", []), *engine(after).get("args", [])]
    assert words[-2:] == SCHEDULER
    assert variables(engine(after))["PYTHONPATH"].split(":")[0] == "/opt/promptprefix"
    assert variables(engine(after))["PROMPTPREFIX_KEY_FILE"] == "/run/promptprefix/key/key"
    mounts = {m["mountPath"]: m for m in engine(after)["volumeMounts"]}
    assert mounts["/opt/promptprefix"]["readOnly"]
    assert mounts["/run/promptprefix/key"]["readOnly"]


@pytest.mark.parametrize("shape", [*HARD, pods.plain])
def test_what_was_there_stays(shape: Callable[[], Json]) -> None:
    before = shape()
    _, after = injected(before)
    assert_kept(before, after)


@pytest.mark.parametrize("shape", [*HARD, pods.plain])
def test_what_is_added_meets_the_restricted_standard(shape: Callable[[], Json]) -> None:
    _, after = injected(shape())
    spec = after["spec"]
    ours = [each for each in spec["initContainers"] if each["name"].startswith("promptprefix-")]
    for each in ours:
        context = each["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] > 0
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert each["resources"] == OPTIONS.resources
    volumes = {each["name"]: each for each in spec["volumes"] if each["name"] in added_names(spec)}
    assert {next(iter(each.keys() - {"name"})) for each in volumes.values()} <= {
        "configMap",
        "emptyDir",
        "projected",
    }
    used = {mount["name"] for each in ours for mount in each["volumeMounts"]}
    assert used == volumes.keys()


def added_names(spec: Json) -> set[str]:
    return {each["name"] for each in spec["volumes"] if each["name"].startswith("promptprefix-")}


@pytest.mark.parametrize(
    ("shape", "url"),
    [
        (pods.plain, "http://127.0.0.1:8000"),
        (pods.production_stack, "http://127.0.0.1:8000"),
        (pods.llm_d, "http://127.0.0.1:8200"),
        (pods.kserve_runtime, "http://127.0.0.1:8080"),
        (pods.kserve_args, "http://127.0.0.1:8080"),
        (pods.kserve_llm, "https://127.0.0.1:8000"),
    ],
)
def test_the_sidecar_finds_the_engine(shape: Callable[[], Json], url: str) -> None:
    _, after = injected(shape())
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_URL"] == url


def test_others_start_first() -> None:
    _, after = injected(pods.llm_d())
    assert [each["name"] for each in after["spec"]["initContainers"]] == [
        "routing-proxy",
        "promptprefix-plugin",
        "promptprefix-key",
        "promptprefix-sidecar",
    ]


def test_a_key_from_a_secret_stays_there() -> None:
    _, after = injected(pods.production_stack())
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_API_KEY"] == SECRET


def test_a_script_gets_the_sidecar_alone() -> None:
    injection, after = injected(pods.plain())
    assert injection.result == "soft"
    assert "'vllm'" in injection.message
    assert " ".join(SCHEDULER) in injection.message
    assert engine(after) == engine(pods.plain())
    names = [each["name"] for each in after["spec"]["initContainers"]]
    assert names == ["promptprefix-key", "promptprefix-sidecar"]
    assert "promptprefix-plugin" not in {volume["name"] for volume in after["spec"]["volumes"]}


def test_a_script_that_names_the_plugin_gets_it() -> None:
    script = f"exec vllm serve m {' '.join(SCHEDULER)} --port 9000"
    injection, after = injected(pod(container(command=["bash", "-lc", script])))
    assert (injection.result, injection.message) == ("hard", "")
    assert engine(after)["command"] == ["bash", "-lc", script]
    assert "args" not in engine(after)
    assert variables(engine(after))["PYTHONPATH"] == "/opt/promptprefix"
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_URL"].endswith(":9000")


def test_a_script_forwards_its_arguments_once() -> None:
    script = 'vllm serve "$@" --port 9000 $@'
    before = pod(container(command=["sh", "-c", script, "sh", "m", "--scheduler-cls", "a.B"]))
    injection, after = injected(before)
    assert injection.result == "soft"
    assert variables(sidecar(after))["PROMPTPREFIX_ENGINE_URL"].endswith(":9000")


@pytest.mark.parametrize(
    ("env", "baked", "expected"),
    [
        ([], "", [("PYTHONPATH", "/opt/promptprefix")]),
        ([], "/app", [("PYTHONPATH", "/opt/promptprefix:/app")]),
        (
            [{"name": "PYTHONPATH", "value": "/a:/b"}],
            "/app",
            [("PYTHONPATH", "/opt/promptprefix:/a:/b")],
        ),
        ([{"name": "PYTHONPATH"}], "", [("PYTHONPATH", "/opt/promptprefix")]),
        (
            [{"name": "PYTHONPATH", "value": "/a:/opt/promptprefix"}],
            "",
            [("PYTHONPATH", "/a:/opt/promptprefix")],
        ),
        (
            [{"name": "A", "value": "a"}, {"name": "PYTHONPATH", "valueFrom": SECRET}],
            "",
            [
                ("A", "a"),
                ("PROMPTPREFIX_PYTHONPATH", SECRET),
                ("PYTHONPATH", "/opt/promptprefix:$(PROMPTPREFIX_PYTHONPATH)"),
            ],
        ),
    ],
)
def test_pythonpath(env: list[Json], baked: str, expected: list[tuple[str, object]]) -> None:
    before = pod(container(env=env), annotations={marks.PYTHONPATH: baked})
    _, after = injected(before)
    found = list(variables(engine(after)).items())
    assert found == [*expected, ("PROMPTPREFIX_KEY_FILE", "/run/promptprefix/key/key")]


def test_pythonpath_of_many_sources() -> None:
    before = pod(container(envFrom=[{"secretRef": {"name": "all"}}]))
    _, after = injected(before)
    assert variables(engine(after))["PYTHONPATH"] == "/opt/promptprefix:$(PYTHONPATH)"
