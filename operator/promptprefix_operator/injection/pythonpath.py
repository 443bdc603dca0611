"""Putting the plugin's folder in front of what the engine's PYTHONPATH holds already."""

from __future__ import annotations

from typing import Final

from promptprefix_operator.injection.additions import PLUGIN_PATH
from promptprefix_operator.injection.environment import Environment
from promptprefix_operator.injection.patch import Operation, append, pointer, set_member
from promptprefix_operator.injection.pod import Container, Variable

NAME: Final = "PYTHONPATH"
HELPER: Final = "PROMPTPREFIX_PYTHONPATH"
"""Keeps a value that comes from elsewhere (``valueFrom``)."""


def pythonpath_operations(
    path: str, container: Container, environment: Environment, baked: str
) -> list[Operation]:
    """Return the operations on ``env`` at ``path``.

    baked: what the image sets itself, which a variable of the pod would hide.
    """
    indices = [i for i, variable in enumerate(container.env) if variable.name == NAME]
    if not indices:
        parts = [PLUGIN_PATH]
        if environment.may_define(NAME):
            # An unknown reference stays as it is: a folder that does not exist.
            parts.append(f"$({NAME})")
        value = ":".join([*parts, *filter(None, [baked])])
        return append(path, len(container.env), [{"name": NAME, "value": value}])
    return _extended(path, indices[-1], container.env[indices[-1]])


def _extended(path: str, index: int, variable: Variable) -> list[Operation]:
    place = path + pointer(index)
    if variable.value_from is None:
        present = [part for part in variable.value.split(":") if part]
        if PLUGIN_PATH in present:
            return []
        value = f"{PLUGIN_PATH}:{variable.value}" if present else PLUGIN_PATH
        return [set_member(place + "/value", value)]
    # The helper comes before the variable that refers to it.
    return [
        set_member(place, {"name": HELPER, "valueFrom": variable.value_from}),
        {
            "op": "replace",
            "path": path + pointer(index + 1),
            "value": {"name": NAME, "value": f"{PLUGIN_PATH}:$({HELPER})"},
        },
    ]
