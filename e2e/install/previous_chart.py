"""The chart before this one, for upgrades as users meet them."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = "charts/promptprefix"
CRD = "promptprefixes.promptprefix.dev.yaml"
_VERSION = re.compile(r"^version: (\S+)$", re.MULTILINE)


def previous_chart(folder: Path) -> tuple[Path, str]:
    """Write the last committed state of the version before this one into ``folder``.

    Its CRD alone is this one's. Returns its folder and its version. Before there are two versions
    it is this chart under the version 0.0.0.
    """
    now = _version((ROOT / CHART / "Chart.yaml").read_text())
    later = ""
    for commit in _git("log", "--format=%H", "--", f"{CHART}/Chart.yaml").split():
        then = _version(_git("show", f"{commit}:{CHART}/Chart.yaml"))
        if then != now:
            state = f"{later}^" if later else "HEAD"
            archive = subprocess.run(
                ["git", "archive", state, CHART], cwd=ROOT, capture_output=True, check=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
                opened.extractall(folder, filter="data")
            # The images are today's, and these ask for today's fields.
            crd = next((folder / CHART).rglob(CRD))
            shutil.copyfile(ROOT / CHART / "files" / CRD, crd)
            return folder / CHART, then
        later = commit
    copy = folder / "promptprefix"
    shutil.copytree(ROOT / CHART, copy)
    manifest = copy / "Chart.yaml"
    manifest.write_text(_VERSION.sub("version: 0.0.0", manifest.read_text()))
    return copy, "0.0.0"


def _version(manifest: str) -> str:
    found = _VERSION.search(manifest)
    if found is None:
        raise ValueError(f"{CHART}/Chart.yaml has no version")
    return found[1]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
