"""Commands to the engine plugin: one signed JSON string in ``vllm_xargs.promptprefix``.

The plugin reads the same format without importing this package; one file of golden vectors holds
the two together. Request logs print these arguments, so nothing in a command is reusable: the MAC
binds it to one engine epoch, one counter value, an expiry and the prompt's tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from promptprefix.tokens import token_digest

COMMAND_VERSION = 1
XARG = "promptprefix"
"""Key in ``vllm_xargs`` of a request and in ``kv_transfer_params`` of its answer."""

MIN_KEY_BYTES = 32

Operation = Literal["pin", "unpin", "renew", "report", "evict", "warm"]


@dataclass(frozen=True)
class PinCommand:
    """One command.

    ``expiry`` is in Unix seconds, ``lease`` in seconds; ``tokens`` counts the prefix tokens to pin
    (a multiple of the block size) or to warm, and is 0 in every other operation. ``id`` is empty in
    a report and a warm, ``epoch`` only in a report. ``counter`` is used once in an epoch.
    """

    op: Operation
    id: str
    epoch: str
    counter: int
    expiry: int
    lease: int = 0
    priority: int = 0
    tokens: int = 0

    def encode(self, key: bytes, prompt_token_ids: Sequence[int]) -> str:
        """Return the signed JSON string for a request whose prompt is ``prompt_token_ids``."""
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"the key must have at least {MIN_KEY_BYTES} bytes")
        fields = {"v": COMMAND_VERSION, **asdict(self)}
        text = _compact(fields)
        signed = f"{text}\n{token_digest(prompt_token_ids)}".encode()
        return _compact({**fields, "mac": hmac.new(key, signed, hashlib.sha256).hexdigest()})


def _compact(value: dict[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
