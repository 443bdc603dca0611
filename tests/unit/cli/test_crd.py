"""The file in crds/ is what the models say."""

from __future__ import annotations

from pathlib import Path

import yaml

from promptprefix.crd import FILE_NAME, custom_resource_definition
from promptprefix_cli.crd import crd_text

ROOT = Path(__file__).parents[3]


def test_the_file_is_fresh() -> None:
    stale = (ROOT / "crds" / FILE_NAME).read_text() != crd_text()
    assert not stale, "crds/ differs from the models: run `make crds`"


def test_the_text_says_what_the_definition_is() -> None:
    assert yaml.safe_load(crd_text()) == custom_resource_definition()
