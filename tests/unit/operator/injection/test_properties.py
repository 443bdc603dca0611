"""Whatever a pod looks like: nothing is lost, and once is enough."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from promptprefix import annotations as marks
from promptprefix.annotations import InjectionResult
from promptprefix_operator.injection.injector import inject

from .pods import OPTIONS, SCHEDULER, SECRET, Json, patched
from .views import assert_kept

WORDS = st.sampled_from(
    [
        *("vllm", "serve", "python3", "-m", "vllm.entrypoints.openai.api_server", "bash", "-c"),
        *("m", "--port", "8000", "--port=8090", "--api-key", "k", "--api-key=$(KEY)", "--", "-dp"),
        *("--scheduler-cls", "a.B", *SCHEDULER, "--host", "::", "--headless", "$(PYTHONPATH)"),
        *('exec vllm serve m "$@"', "vllm serve m --port $PORT", "-I", "--ssl-certfile", "2"),
    ]
)
TEXTS = st.one_of(WORDS, st.text(max_size=6))
NAMES = st.sampled_from(
    ["vllm", "a", "b", "promptprefix-key", "promptprefix-plugin", "promptprefix-sidecar"]
)
VARIABLES = st.one_of(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(
                ["PYTHONPATH", "KEY", "PORT", "TZ", "VLLM_API_KEY", "VLLM_USE_V1"]
            )
        },
        optional={"value": st.one_of(st.none(), TEXTS)},
    ),
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["PYTHONPATH", "KEY", "PROMPTPREFIX_PYTHONPATH"]),
            "valueFrom": st.just(SECRET),
        }
    ),
)


def lists(items: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.lists(items, max_size=size))


MOUNTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "y"]),
        "mountPath": st.sampled_from(["/opt", "/opt/promptprefix", "/run", "/data"]),
    }
)
CONTAINERS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "image": st.sampled_from(["vllm/vllm-openai:v0.32.0", "x", "a/vllm@sha256:0"]),
        "command": st.one_of(st.just(["vllm", "serve", "m"]), lists(TEXTS, 6)),
        "args": lists(TEXTS, 8),
        "env": lists(VARIABLES),
        "envFrom": lists(st.just({"secretRef": {"name": "all"}})),
        "ports": lists(st.fixed_dictionaries({"containerPort": st.sampled_from([8000, 8090])})),
        "volumeMounts": lists(MOUNTS),
        "restartPolicy": st.just("Always"),
        "resources": st.sampled_from([None, {}, {"limits": {"cpu": "1", "memory": "1Gi"}}]),
    },
)
VOLUMES = st.fixed_dictionaries(
    {"name": st.sampled_from(["x", "y", "promptprefix-tmp"])},
    optional={"emptyDir": st.just({})},
)


def distinct(containers: list[Json], others: list[Json]) -> tuple[list[Json], list[Json]]:
    """Number containers that share a name, as an API server would have refused them."""
    seen: set[str] = set()
    for index, each in enumerate([*containers, *others]):
        if each["name"] in seen:
            each["name"] = f"{each['name']}-{index}"
        seen.add(each["name"])
    return containers, others


@st.composite
def pods(draw: st.DrawFn) -> Json:
    containers, others = distinct(
        draw(st.lists(CONTAINERS, min_size=1, max_size=3)), draw(st.lists(CONTAINERS, max_size=2))
    )
    annotations = draw(
        st.one_of(
            st.none(),
            st.dictionaries(
                st.sampled_from(
                    [
                        marks.CONTAINER,
                        marks.PYTHONPATH,
                        marks.INJECTED,
                        marks.INJECTION_MESSAGE,
                        marks.KV_EVENTS,
                        "x",
                    ]
                ),
                st.sampled_from(["vllm", "a", "hard", "none", "true"]),
            ),
        )
    )
    volumes = draw(st.lists(VOLUMES, max_size=2, unique_by=lambda volume: str(volume["name"])))
    return {
        "metadata": {"labels": {marks.INJECT: "true"}, "annotations": annotations},
        "spec": {
            "containers": containers,
            "initContainers": others or draw(st.sampled_from([None, []])),
            "volumes": volumes or draw(st.sampled_from([None, []])),
        },
    }


@given(pods())
def test_a_second_injection_adds_nothing(before: Json) -> None:
    original = copy.deepcopy(before)
    first = inject(before, "ml", OPTIONS)
    assert before == original
    after = patched(before, first.operations)
    second = inject(after, "ml", OPTIONS)
    assert second.operations == ()
    assert second.result == first.result


@given(pods())
def test_the_patch_only_adds_and_tells(before: Json) -> None:
    injection = inject(before, "ml", OPTIONS)
    after = patched(before, injection.operations)
    assert_distinct(after["spec"])
    assert injection.result == "hard" or injection.message
    if injection.operations:
        assert after["metadata"]["annotations"][marks.INJECTED] == injection.result
    without_engine = copy.deepcopy(before)
    for container, changed in zip(
        without_engine["spec"]["containers"], after["spec"]["containers"], strict=True
    ):
        names = [each["name"] for each in container.get("env") or ()]
        kept = [each for each in changed.get("env") or () if not each["name"].startswith("PROMPT")]
        assert [each["name"] for each in kept][: len(names)] == [
            name for name in names if not name.startswith("PROMPT")
        ]
        container.pop("env", None)
    ours = {marks.INJECTED, marks.INJECTION_MESSAGE}
    for mark in ours & (without_engine["metadata"]["annotations"] or {}).keys():
        without_engine["metadata"]["annotations"].pop(mark)
    assert_kept(_without_null(without_engine), after)


@pytest.mark.parametrize("result", list(InjectionResult))
def test_the_generated_pods_get_every_result(result: InjectionResult) -> None:
    find(pods(), lambda pod: inject(pod, "ml", OPTIONS).result is result)


def assert_distinct(spec: Json) -> None:
    names = [each["name"] for each in (*(spec["initContainers"] or ()), *spec["containers"])]
    assert len(set(names)) == len(names)
    volumes = [each["name"] for each in spec["volumes"] or ()]
    assert len(set(volumes)) == len(volumes)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(each) for name, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value
