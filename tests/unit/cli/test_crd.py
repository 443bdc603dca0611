"""The file in crds/ and its copy in the chart are what the models say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from promptprefix.crd import FILE_NAME, custom_resource_definition
from promptprefix_cli.crd import crd_text

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", ["crds", "charts/promptprefix/files"])
def test_the_file_is_fresh(folder: str) -> None:
    stale = (ROOT / folder / FILE_NAME).read_text() != crd_text()
    assert not stale, f"{folder}/ differs from the models: run `make crds`"


def test_the_text_says_what_the_definition_is() -> None:
    assert yaml.safe_load(crd_text()) == custom_resource_definition()
