"""Documents of an input: YAML streams, one JSON value, or JSON Lines.

Read as strictly as the API server and the engine read them: a key that stands twice is refused, and
dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from promptprefix.canonical import CanonicalError, parse_json
from promptprefix_cli.input_error import InputError

JSON_START = re.compile(r'\s*(?:\{\s*["}]|\[)')
"""How JSON texts begin, and flow-style YAML by people does not."""


MERGE = "tag:yaml.org,2002:merge"
NOT_JSON = ("binary", "omap", "pairs", "set", "timestamp")
"""Types of YAML that have no equal in JSON; the API server doesn't take them either."""


class _StrictLoader(yaml.SafeLoader):
    """Reads what JSON can say; keys are strings, and each stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is no string; quote it", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] not in NOT_JSON
}
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(source: str, data: bytes) -> list[tuple[str, Any]]:
    """Return the documents of ``data`` with labels; raise `InputError` if they can't be read."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(source, "", f"is not UTF-8 text (byte {error.start})") from error
    json_text = JSON_START.match(text)
    documents = _json_documents(source, text) if json_text else _yaml_documents(source, text)
    return [(f"{source} document {n}", document) for n, document in enumerate(documents, 1)]


def _json_documents(source: str, text: str) -> Iterator[Any]:
    try:
        yield parse_json(text)
    except CanonicalError as error:
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) == 1 or not _is_json(lines[0][1]):
            raise InputError(source, "", str(error)) from error
        for number, line in lines:
            yield _json_line(source, number, line)


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except CanonicalError:
        return False
    return True


def _json_line(source: str, number: int, line: str) -> Any:
    try:
        return parse_json(line)
    except CanonicalError as error:
        raise InputError(source, f"line {number}", str(error)) from error


def _yaml_documents(source: str, text: str) -> list[Any]:
    try:
        documents = list(yaml.load_all(text, _StrictLoader))
    except yaml.YAMLError as error:
        raise InputError(source, "", f"is not YAML: {_words(error)}") from error
    except (RecursionError, ValueError) as error:
        raise InputError(source, "", f"is not YAML: {error}") from error
    return [document for document in documents if document is not None]


def _words(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, without the lines of the input: they may be a prompt's."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).replace('in "<unicode string>", ', "").split())
    parts = ((error.context, error.context_mark), (error.problem, error.problem_mark))
    return ", ".join(
        words if mark is None else f"{words} line {mark.line + 1}, column {mark.column + 1}"
        for words, mark in parts
        if words
    )
