"""What the charts render to: Helm's own output, read strictly."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.tools import helm

CHARTS = Path(__file__).parents[2] / "charts"
RELEASE = "promptprefix"
NAMESPACE = "promptprefix-system"
KUBE_VERSION = "1.33.0"

Object = dict[str, Any]
Values = Mapping[str, Any]


class HelmError(Exception):
    """Helm refused; the message is what it printed."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: the API server would take either."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(
                None, None, f"keys that stand twice: {sorted(twice)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


def run_helm(*arguments: str) -> str:
    """Run Helm and return its standard output. Raises `HelmError`."""
    done = subprocess.run(
        [str(_program()), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HelmError(done.stderr or done.stdout)
    return done.stdout


def render(
    chart: str,
    values: Values | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    kube_version: str = KUBE_VERSION,
    api_versions: Sequence[str] = (),
) -> list[Object]:
    """Return every object of ``charts/<chart>``, tests and other hooks included."""
    text = _with_values(
        values,
        "template",
        release,
        str(CHARTS / chart),
        f"--namespace={namespace}",
        f"--kube-version={kube_version}",
        *(f"--api-versions={version}" for version in api_versions),
    )
    return objects_of(text)


def notes(
    chart: str, values: Values | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> str:
    """Return what an installation prints."""
    arguments = ("install", release, str(CHARTS / chart), f"--namespace={namespace}")
    text = _with_values(values, *arguments, "--dry-run=client")
    return text.partition("\nNOTES:\n")[2]


def objects_of(text: str) -> list[Object]:
    """Return the documents of ``text`` that are not empty."""
    documents = yaml.load_all(text, Loader=_Loader)
    return [document for document in documents if document is not None]


def named(objects: Iterable[Object], kind: str, name: str, namespace: str | None = None) -> Object:
    """Return the one object of this kind and name; ``namespace`` where several share the name."""
    found = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
        and namespace in (None, each["metadata"].get("namespace"))
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name} (namespace {namespace or 'any'})"
    return found[0]


def of_kind(objects: Iterable[Object], kind: str) -> list[Object]:
    """Return the objects of this kind."""
    return [each for each in objects if each["kind"] == kind]


def pod_spec_of(each: Object) -> Object | None:
    """Return the pod's spec of a workload or a pod, None for everything else."""
    spec: Object = each.get("spec") or {}
    if each["kind"] == "Pod":
        return spec
    if each["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object = spec.get("template") or {}
    return template.get("spec")


def _with_values(values: Values | None, *arguments: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        return run_helm(*arguments, f"--values={file.name}")


@functools.cache
def _program() -> Path:
    return helm.find_or_build(print)
