"""What the list of an image's contents says of each distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.sbom import Package, archive_hashes, document, installed, normalized

DIGEST = "a" * 64


def distribution(folder: Path, name: str, version: str, *fields: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *fields]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nDescription\n")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((), None),
        (("License-Expression: MIT OR Apache-2.0",), [{"expression": "MIT OR Apache-2.0"}]),
        (("License: BSD",), [{"license": {"name": "BSD"}}]),
        (
            ("License: Copyright (c)\n        the whole text",),
            None,
        ),
        (
            ("License: BSD", "Classifier: License :: OSI Approved :: BSD License"),
            [{"license": {"name": "BSD License"}}],
        ),
        (
            ("License-Expression: MIT", "Classifier: License :: OSI Approved :: MIT License"),
            [{"expression": "MIT"}],
        ),
    ],
)
def test_licence(tmp_path: Path, fields: tuple[str, ...], expected: object) -> None:
    distribution(tmp_path, "thing", "1.0", *fields)
    (component,) = document_components(tmp_path)
    assert component.get("licenses") == expected


def document_components(*folders: Path) -> list[dict[str, object]]:
    components = document("image", "2", installed(folders, {}))["components"]
    assert isinstance(components, list)
    return components


def test_lists_all_folders_by_name(tmp_path: Path) -> None:
    for folder, names in {"one": ("zebra", "Alpha"), "two": ("middle_one",)}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            distribution(tmp_path / folder, name, "1")
    components = document_components(tmp_path / "one", tmp_path / "two")
    assert [item["name"] for item in components] == ["Alpha", "middle_one", "zebra"]


def test_what_came_in_an_archive_has_its_digest(tmp_path: Path) -> None:
    distribution(tmp_path, "Typing_Extensions", "4.1+local")
    distribution(tmp_path, "ours", "1")
    archive_info = {"hashes": {"sha256": DIGEST}}
    report = {
        "install": [
            {
                "metadata": {"name": "typing-extensions"},
                "download_info": {"archive_info": archive_info},
            },
            {"metadata": {"name": "ours"}, "download_info": {"dir_info": {}}},
        ]
    }
    packages = installed([tmp_path], archive_hashes(report))
    ours, theirs = packages
    assert (ours.sha256, ours.purl) == ("", "pkg:generic/ours@1")
    assert (theirs.sha256, theirs.purl) == (DIGEST, "pkg:pypi/typing-extensions@4.1%2Blocal")


def test_the_image_depends_on_every_component() -> None:
    content = document("image", "2", [Package("a", "1"), Package("b", "1")])
    assert content["dependencies"] == [
        {"ref": "image@2", "dependsOn": ["pkg:generic/a@1", "pkg:generic/b@1"]}
    ]


@pytest.mark.parametrize("name", ["A.b", "a-b", "a__b", "A-_.B"])
def test_names_are_compared_as_the_index_does(name: str) -> None:
    assert normalized(name) == "a-b"
