"""The proof with which a reader is let in to a pod's feed of blocks.

``authorization: PromptPrefix <Unix seconds>.<nonce>.<HMAC-SHA256>`` with the namespace's door key,
over the path, the pod's uid, the step and both. It is good for one pod, once, for a minute.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from promptprefix.block_stream import BLOCKS_PATH, BlockKeys

SCHEME: Final = "PromptPrefix"
VALID_S: Final = 60
"""Seconds by which the reader's clock may differ from the pod's."""

NONCE_BYTES: Final = 16
MAX_NONCES: Final = 4_096

_VALUE: Final = re.compile(
    rf"{SCHEME} ([0-9]{{1,12}})\.([0-9a-f]{{{2 * NONCE_BYTES}}})\.([0-9a-f]{{64}})", re.ASCII
)


def authorization(keys: BlockKeys, pod_uid: str, every: int, now: float, nonce: bytes) -> str:
    """Return the header's value. ``now`` is Unix seconds, ``nonce`` fresh random bytes."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    at, text = int(now), nonce.hex()
    return f"{SCHEME} {at}.{text}.{_mac(keys, pod_uid, every, at, text)}"


@dataclass
class Door:
    """Of one pod. A proof from before it ``opened`` (Unix seconds) may have been used: refused.

    Only what was proved is remembered.
    """

    pod_uid: str
    opened: float
    _used: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def admits(self, keys: BlockKeys | None, value: str | None, every: int, now: float) -> bool:
        """Whether ``value`` proves its sender, for the first time. ``now`` is Unix seconds."""
        found = _VALUE.fullmatch(value) if value is not None else None
        if keys is None or found is None:
            return False
        at, nonce, mac = int(found[1]), found[2], found[3]
        if not hmac.compare_digest(mac, _mac(keys, self.pod_uid, every, at, nonce)):
            return False
        if abs(now - at) > VALID_S or at < int(self.opened) or nonce in self._used:
            return False
        if len(self._used) >= MAX_NONCES:
            self._used = {each: until for each, until in self._used.items() if until >= now}
        if len(self._used) >= MAX_NONCES:
            return False
        self._used[nonce] = at + VALID_S
        return True


def _mac(keys: BlockKeys, pod_uid: str, every: int, at: int, nonce: str) -> str:
    signed = f"GET {BLOCKS_PATH}\n{pod_uid}\n{every}\n{at}\n{nonce}"
    return hmac.new(keys.door, signed.encode(), "sha256").hexdigest()
