"""Every field of the vLLM that the tests use is one whose meaning was looked at."""

from __future__ import annotations

import ast
import sys

import pytest

from e2e.engine.environment import ensure_environment
from e2e.request_fields import FIELDS, Fields

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: fields.model)
def test_every_field_was_looked_at(fields: Fields) -> None:
    environment = ensure_environment(lambda line: print(line, file=sys.stderr, flush=True))
    source = environment.site_packages / "vllm" / fields.source
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (model,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == fields.model
    )
    names = {
        node.target.id
        for node in model.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    public = {name for name in names if not name.startswith("_")}
    assert public == fields.identity | fields.free.keys() | fields.undeclared.keys()
