"""Refuses engine commands in requests of clients.

A command is our key in one of the fields that an engine copies into the extra arguments of its
sampling parameters. Only our key is refused: other extra arguments, and the transfer parameters of
a connector, are the users' own. The command's MAC is the guarantee; this is a second fence, and it
can't see a body beyond the limit that Envoy shows us.

The engine reads a body with Python's `json`, which also takes UTF-16 and UTF-32, escaped key names
and keys that stand twice. So does this module.
"""

from __future__ import annotations

import json
from typing import Any

from promptprefix.pin_command import XARG
from promptprefix_router.traces import Traces

CARRIERS = frozenset({"vllm_xargs", "kv_transfer_params", "ec_transfer_params", "extra_args"})
"""Fields of a request whose keys an engine hands to its scheduler."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its pairs, also those whose key stands twice."""


def carries_command(body: bytes, traces: Traces | None = None) -> bool:
    """Return whether an engine could read a command of ours out of ``body``.

    ``traces`` are those of the body, if they are known.
    True for a body nested too deep to tell that may hold one. False for a body that no JSON
    reader accepts: the engine refuses it as well.
    """
    if not (traces or Traces.of(body)).command:
        return False
    try:
        value = json.loads(
            body,
            object_pairs_hook=_Pairs,
            parse_int=_nothing,
            parse_float=_nothing,
            parse_constant=_nothing,
        )
    except RecursionError:
        return True
    except ValueError:
        return False
    return isinstance(value, _Pairs) and any(
        key in CARRIERS and isinstance(item, _Pairs) and any(name == XARG for name, _ in item)
        for key, item in value
    )


def _nothing(_text: str) -> None:
    """Stand for a number: its value is of no interest, and its length must not matter."""
