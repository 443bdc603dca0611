"""Which container is the engine, and how it is started."""

from __future__ import annotations

import pytest

from promptprefix_operator.injection.command import Start
from promptprefix_operator.injection.engine import Engine, find_engine, is_engine_image
from promptprefix_operator.injection.pod import Pod

from .pods import Json, container, pod

ENGINES = [
    "vllm",
    "rocm/vllm:latest",
    "vllm/vllm-openai",
    "vllm/vllm-openai:v0.32.0",
    "vllm/vllm-openai@sha256:0123",
    "registry.example:5000/mirror/vllm-openai:v0.32.0@sha256:0123",
    "lmcache/vllm-openai:v0.3.9",
    "vllm/vllm-openai-rocm:nightly",
    "vllm-arm64-openai:1",
    "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0",
    "registry.example/rhaiis/vllm-cuda-rhel9:3",
    "opea/vllm-gaudi",
    "quay.io/ascend/vllm-ascend:v0.11",
]
OTHERS = [
    "",
    "nginx",
    "vllm.example:5000/team/llm:1",
    "vllm-project/semantic-router/extproc:latest",
    "ghcr.io/vllm-project/semantic-router:latest",
    "vllm/llm:vllm",
    "team/llm@sha256:vllm",
    "vllm-exporter",
    "team/vllm-exporter:1",
    "vllm-openai-exporter",
    "vllm-openai-proxy:2",
    "lmcache/vllm-router",
    "vllm-metrics",
    "vllm-cpu-benchmarks",
    "vllm-cpuinfo",
    "vllmish",
    "not-vllm",
    "tgis-vllm-proxy",
]


@pytest.mark.parametrize("image", ENGINES)
def test_images_that_run_vllm(image: str) -> None:
    assert is_engine_image(image)


@pytest.mark.parametrize("image", OTHERS)
def test_images_that_do_not(image: str) -> None:
    assert not is_engine_image(image)


def found(*containers: Json) -> Engine | str:
    return find_engine(Pod.model_validate(pod(*containers)))


@pytest.mark.parametrize("companion", ["vllm-exporter", "ghcr.io/vllm-project/semantic-router/x"])
def test_a_companion_does_not_hide_the_engine(companion: str) -> None:
    engine = container(command=None, args=["--model", "m"])
    chosen = found({"name": "other", "image": companion}, engine)
    assert isinstance(chosen, Engine)
    assert (chosen.container.name, chosen.sure) == ("vllm", True)


@pytest.mark.parametrize(
    ("args", "start"),
    [
        (["-dcp", "2", "--model", "m"], Start.IMAGE),
        (["-pcp", "2", "--model", "m"], Start.IMAGE),
        (["-cc", '{"mode": 3}', "--model", "m"], Start.IMAGE),
        (["-cc.mode=3", "--model", "m"], Start.IMAGE),
        (["-c"], Start.IMAGE),
        (["-c", "vllm serve m"], Start.SCRIPT),
        (["-lc", "vllm serve m"], Start.SCRIPT),
        (["-ec", "vllm serve m"], Start.SCRIPT),
        (["-xc", "vllm serve m"], Start.SCRIPT),
        (["-euc", "vllm serve m"], Start.SCRIPT),
        (["-euxc", "vllm serve m"], Start.SCRIPT),
        (["bash", "-cl", "vllm serve m"], Start.SCRIPT),
        (["-c", "sleep 1"], Start.OTHER),
    ],
)
def test_arguments_of_an_image(args: list[str], start: Start) -> None:
    chosen = find_engine(
        Pod.model_validate(
            pod(
                container(command=None, args=args),
                annotations={"promptprefix.dev/container": "vllm"},
            )
        )
    )
    assert isinstance(chosen, Engine)
    assert chosen.command.start is start
