"""The list of what an image holds, as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Package:
    """One installed distribution; ``sha256`` is that of its archive, if it came in one."""

    name: str
    version: str
    license_expression: str = ""
    license_names: tuple[str, ...] = ()
    sha256: str = ""

    @property
    def purl(self) -> str:
        """Package URL; what was built from the checkout is on no index, hence ``generic``."""
        kind, name = ("pypi", normalized(self.name)) if self.sha256 else ("generic", self.name)
        return f"pkg:{kind}/{quote(name)}@{quote(self.version)}"


def normalized(name: str) -> str:
    """Return the name as the package index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(folders: Iterable[Path], sha256: Mapping[str, str]) -> list[Package]:
    """Return the distributions in ``folders`` by name; ``sha256`` is keyed by normalized name."""
    found = metadata.distributions(path=[str(folder) for folder in folders])
    packages = [_package(distribution.metadata, sha256) for distribution in found]
    return sorted(packages, key=lambda package: normalized(package.name))


def archive_hashes(report: Mapping[str, Any]) -> dict[str, str]:
    """Return SHA-256 by normalized name from what ``pip install --report`` wrote (version 1)."""
    hashes = {}
    for item in report["install"]:
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest:
            hashes[normalized(item["metadata"]["name"])] = digest
    return hashes


def document(image: str, version: str, packages: Iterable[Package]) -> dict[str, object]:
    """Return one image's SBOM, without time and serial number: builds can be compared."""
    root = f"{image}@{version}"
    components = [_component(package) for package in packages]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": root,
                "name": image,
                "version": version,
            }
        },
        "components": components,
        "dependencies": [
            {"ref": root, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }


def _package(fields: metadata.PackageMetadata, sha256: Mapping[str, str]) -> Package:
    name = fields["Name"]
    expression = (fields.get_all("License-Expression") or [""])[0]
    names = [
        classifier.rpartition(" :: ")[2]
        for classifier in fields.get_all("Classifier") or []
        if classifier.startswith("License :: ")
    ]
    stated = (fields.get_all("License") or [""])[0].strip()
    if not names and stated and "\n" not in stated:  # some put the whole text there
        names = [stated]
    digest = sha256.get(normalized(name), "")
    return Package(name, fields["Version"], expression, tuple(names), digest)


def _component(package: Package) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.license_expression:
        component["licenses"] = [{"expression": package.license_expression}]
    elif package.license_names:
        component["licenses"] = [{"license": {"name": name}} for name in package.license_names]
    if package.sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": package.sha256}]
    return component
