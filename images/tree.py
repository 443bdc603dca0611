"""Makes the files of one image; each Containerfile runs it in its build stage, from the context.

    python3 -m images.tree dependencies operator    what the component imports
    python3 -m images.tree component operator       core, the component and the SBOM
    python3 -m images.tree plugin                   the engine plugin and its SBOM

Needs pip and the standard library. Each command fills a folder of its own under ``ROOT``, which
becomes a layer of its own: a change of the code leaves the large layer as it is.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from images import sbom

ROOT = Path("/image")
DEPENDENCIES = ROOT / "dependencies"  # copied to / of the image, like the next two
COMPONENT = ROOT / "component"
PLUGIN = ROOT / "plugin"
TOOLS = Path("/build/tools")  # what the package is built with; stays behind
REPORT = Path("/build/report.json")

PLUGIN_PACKAGE = Path("engine/promptprefix_vllm")
PLUGIN_FOLDER = Path("usr/share/promptprefix-plugin")
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check",
       "--root-user-action=ignore", "--no-cache-dir", "--no-compile", "--quiet")  # fmt: skip


@dataclass(frozen=True)
class Project:
    """What the images take from ``pyproject.toml``."""

    name: str
    version: str
    license: str
    build_requirements: tuple[str, ...]
    requirements: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, file: Path) -> Project:
        """Read ``pyproject.toml``."""
        content = tomllib.loads(file.read_text())
        project = content["project"]
        return cls(
            project["name"],
            project["version"],
            project["license"],
            tuple(content["build-system"]["requires"]),
            tuple(project["dependencies"]),
            {name: tuple(items) for name, items in project["optional-dependencies"].items()},
        )


def main(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m images.tree")
    commands = parser.add_subparsers(dest="command", required=True)
    project = Project.read(Path("pyproject.toml"))
    for name in ("dependencies", "component"):
        commands.add_parser(name).add_argument("extra", choices=sorted(project.extras))
    commands.add_parser("plugin")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "dependencies":
            install_dependencies(project, chosen.extra)
        elif chosen.command == "component":
            install_component(project, chosen.extra)
        else:
            copy_plugin(project)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)  # pip has said why
    return 0


def install_dependencies(project: Project, extra: str) -> None:
    """Install what core and one component need, and, apart, what their package is built with."""
    target = DEPENDENCIES / "app/dependencies"
    wanted = [*project.requirements, *project.extras[extra]]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    # Wheels alone: nothing that was downloaded runs here.
    wheels = ("--only-binary=:all:", f"--target={target}", f"--report={REPORT}")
    subprocess.run([*PIP, *wheels, *wanted], check=True)
    subprocess.run([*PIP, f"--target={TOOLS}", *project.build_requirements], check=True)
    _compile(TOOLS, TOOLS)
    _finish(target, DEPENDENCIES)


def install_component(project: Project, extra: str) -> None:
    """Install the packages that lie in the context, and list all that is installed."""
    target = COMPONENT / "app/component"
    path = os.pathsep.join(filter(None, (str(TOOLS), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [*PIP, "--no-index", "--no-deps", "--no-build-isolation", f"--target={target}", "."],
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    _finish(target, COMPONENT)
    hashes = sbom.archive_hashes(json.loads(REPORT.read_text()))
    packages = sbom.installed((target, DEPENDENCIES / "app/dependencies"), hashes)
    _write_sbom(COMPONENT, project, extra, packages)


def copy_plugin(project: Project) -> None:
    """Copy the plugin's sources, readable by every user: the engine's is unknown."""
    target = PLUGIN / PLUGIN_FOLDER / PLUGIN_PACKAGE.name
    shutil.copytree(PLUGIN_PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    package = sbom.Package(project.name, project.version, project.license)
    _write_sbom(PLUGIN, project, "plugin", [package])
    for path in (PLUGIN, *PLUGIN.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _finish(target: Path, layer: Path) -> None:
    """Leave out the console scripts, which name the build stage's Python, and compile the rest."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    _compile(target, layer)


def _compile(target: Path, layer: Path) -> None:
    # Unchecked: the files can't change in an image, and copies may lose their time of change.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        target, quiet=2, workers=0, stripdir=str(layer), prependdir="/", invalidation_mode=mode
    )


def _write_sbom(
    layer: Path, project: Project, component: str, packages: list[sbom.Package]
) -> None:
    file = layer / "usr/share/sbom" / f"{component}.cdx.json"
    file.parent.mkdir(parents=True)
    content = sbom.document(f"{project.name}-{component}", project.version, packages)
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
