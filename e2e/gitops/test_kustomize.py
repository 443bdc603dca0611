"""The example repository, built by the real kustomize: names, texts, overlays, lint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import CONTENT_FIELDS, Payload
from promptprefix.resource import API_VERSION, KIND, LintPolicy, Pinning, PromptPrefixSpec
from promptprefix.shapes.chat import CHAT

pytestmark = pytest.mark.timeout(1800)  # the first run builds kubectl

EXAMPLE = Path(__file__).parents[2] / "examples" / "gitops"
BASE = Path("prompts/base")
OVERLAYS = sorted(folder.name for folder in (EXAMPLE / "prompts" / "overlays").iterdir())


class Repository:
    """A copy of the example that a test may edit."""

    def __init__(self, folder: Path, kubectl: Path) -> None:
        self.folder = folder
        self._kubectl = kubectl
        shutil.copytree(EXAMPLE, folder)

    def build(self, overlay: str) -> list[dict[str, Any]]:
        """Return the objects of an overlay."""
        built = subprocess.run(
            [str(self._kubectl), "kustomize", str(self.folder / "prompts/overlays" / overlay)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return list(yaml.safe_load_all(built.stdout))

    def write(self, path: str | Path, text: str) -> None:
        (self.folder / path).write_bytes(text.encode())

    def lint(self) -> subprocess.CompletedProcess[str]:
        """Run the step of CI with our kubectl and command line first on PATH."""
        path = f"{self._kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            [str(self.folder / "lint.sh")],
            env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path, kubectl: Path) -> Repository:
    return Repository(tmp_path / "repository", kubectl)


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the object of that kind whose name is ``name``, or begins with it and a hash."""
    [found] = [
        body
        for body in objects
        if body["kind"] == kind
        and body["metadata"]["name"].removeprefix(name).count("-") <= 1
        and body["metadata"]["name"].startswith(name)
    ]
    return found


def reference(objects: list[dict[str, Any]], name: str) -> str:
    spec = PromptPrefixSpec.model_validate(named(objects, KIND, name)["spec"])
    assert spec.content.configMapRef is not None
    return spec.content.configMapRef.name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_generated_names_reach_the_resources(repository: Repository, overlay: str) -> None:
    objects = repository.build(overlay)
    prefixes = [body for body in objects if body["kind"] == KIND]
    assert [body["metadata"]["name"] for body in prefixes] == ["sql-assistant", "support-triage"]
    for body in prefixes:
        assert body["apiVersion"] == API_VERSION
        name = body["metadata"]["name"]
        config_map = named(objects, "ConfigMap", name)
        assert reference(objects, name) == config_map["metadata"]["name"] != name
        assert body["metadata"]["namespace"] == config_map["metadata"]["namespace"]
        assert body["metadata"]["labels"] == {"environment": overlay}
        assert set(config_map["data"]) <= set(CONTENT_FIELDS)
        assert body["spec"]["pods"]["selector"] == {"matchLabels": {"app": "vllm"}}


def test_overlays_differ_where_they_should(repository: Repository) -> None:
    specs = {
        overlay: PromptPrefixSpec.model_validate(
            named(repository.build(overlay), KIND, "support-triage")["spec"]
        )
        for overlay in OVERLAYS
    }
    staging, production = specs["staging"], specs["production"]
    assert (staging.model, production.model) == ("demo-small", "demo")
    assert (staging.replicas, production.replicas) == (1, "All")
    assert (staging.pinning, production.pinning) == (Pinning.SOFT, Pinning.HARD)
    assert (staging.lint.policy, production.lint.policy) == (LintPolicy.WARN, LintPolicy.ENFORCE)
    texts = {
        overlay: set(named(repository.build(overlay), "ConfigMap", "support-triage")["data"])
        for overlay in OVERLAYS
    }
    assert texts["production"] - texts["staging"] == {"defaultModeSpecs"}


def test_a_changed_text_changes_the_name_of_its_own_prefix_alone(repository: Repository) -> None:
    before = repository.build("production")
    prompt = BASE / "support-triage" / "system.md"
    repository.write(prompt, (repository.folder / prompt).read_text() + "7. Be brief.\n")
    after = repository.build("production")
    assert reference(before, "support-triage") != reference(after, "support-triage")
    assert reference(before, "sql-assistant") == reference(after, "sql-assistant")


@pytest.mark.parametrize(
    "text",
    ["no line end", "two\n\n", "tab\t and space \n", " leading", "a\r\nb\r\n", "\n",
     "Zürich ｆ 🧭 e\u0301\n", '"quoted": {{x}} # no comment\n---\n'],
)  # fmt: skip
def test_texts_arrive_byte_for_byte(repository: Repository, text: str) -> None:
    repository.write(BASE / "sql-assistant" / "system.md", text)
    config_map = named(repository.build("staging"), "ConfigMap", "sql-assistant")
    assert config_map["data"] == {"systemInstructions": text}


def test_a_client_that_sends_the_files_matches(repository: Repository) -> None:
    base = repository.folder / BASE / "support-triage"
    mode = repository.folder / "prompts/overlays/production/strict.md"
    body = {
        "model": "demo",
        "messages": [
            {
                "role": "system",
                "content": f"{(base / 'system.md').read_text()}\n\n{mode.read_text()}",
            },
            {"role": "user", "content": "My disk clicks."},
        ],
        "tools": json.loads((base / "tools.json").read_text()),
    }
    data = named(repository.build("production"), "ConfigMap", "support-triage")["data"]
    declared = payload_fingerprint("demo", Payload.from_data(data))
    assert CHAT.immutable_part(body).fingerprint == declared


def test_a_secret_is_renamed_in_the_resource_too(repository: Repository) -> None:
    base = repository.folder / BASE
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    [generator] = [
        each for each in kustomization["configMapGenerator"] if each["name"] == "sql-assistant"
    ]
    kustomization["configMapGenerator"].remove(generator)
    kustomization["secretGenerator"] = [generator]
    repository.write(BASE / "kustomization.yaml", yaml.safe_dump(kustomization))
    prefix = (base / "sql-assistant/prefix.yaml").read_text()
    repository.write(
        BASE / "sql-assistant/prefix.yaml", prefix.replace("configMapRef", "secretRef")
    )
    objects = repository.build("staging")
    spec = PromptPrefixSpec.model_validate(named(objects, KIND, "sql-assistant")["spec"])
    assert spec.content.secretRef is not None
    assert (
        spec.content.secretRef.name == named(objects, "Secret", "sql-assistant")["metadata"]["name"]
    )


def test_the_step_of_ci_lets_good_texts_pass_and_stops_others(repository: Repository) -> None:
    good = repository.lint()
    assert (good.returncode, good.stdout.count("no findings")) == (0, 4), good.stderr
    prompt = BASE / "sql-assistant" / "system.md"
    dated = f"Current time: 2026-11-29T14:15:00Z\n{(repository.folder / prompt).read_text()}"
    repository.write(prompt, dated)
    bad = repository.lint()
    assert bad.returncode == 1
    assert "dynamic-timestamp" in bad.stdout
    assert "data.systemInstructions" in bad.stdout
