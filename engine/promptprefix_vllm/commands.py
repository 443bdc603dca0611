"""The signed commands that reach the plugin inside ordinary completion requests.

A command is one JSON object, sent as a string in ``vllm_xargs.promptprefix`` (vLLM takes only
scalars there). Request logs and crash dumps print such arguments, so nothing in a command may be
worth stealing: it carries a MAC over itself and over the tokens of the prompt that brought it, a
counter that is used once, the engine's epoch and an expiry.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ARGUMENT: Final = "promptprefix"
VERSION: Final = 1
OPERATIONS: Final = ("pin", "unpin", "renew", "report", "evict", "warm")
NAMELESS: Final = ("report", "warm")
COMPUTING: Final = ("pin", "warm")
MIN_KEY_BYTES: Final = 32
MAX_COMMAND_CHARS: Final = 4096
MAX_ID_CHARS: Final = 256
MAX_INTEGER: Final = 2**53
MAX_LEASE_SECONDS: Final = 7 * 86_400
# Far more than can be underway at once.
MAX_USED: Final = 1024

_STRINGS: Final = ("op", "id", "epoch", "mac")
_INTEGERS: Final = ("v", "counter", "expiry", "lease", "priority", "tokens")
_FIELDS: Final = frozenset(_STRINGS) | frozenset(_INTEGERS)


class CommandError(Exception):
    """A command that must do nothing. ``reason`` is a machine word, ``message`` a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Command:
    """A well-formed command; whether its MAC holds is the verifier's question.

    expiry: Unix seconds. lease: seconds. tokens: how many to pin (a multiple of the block size) or
    to warm.
    """

    op: str
    id: str
    epoch: str
    counter: int
    expiry: int
    lease: int
    priority: int
    tokens: int
    mac: str

    def fields(self) -> dict[str, str | int]:
        """What the MAC covers: every field but the MAC."""
        return {
            "v": VERSION,
            "op": self.op,
            "id": self.id,
            "epoch": self.epoch,
            "counter": self.counter,
            "expiry": self.expiry,
            "lease": self.lease,
            "priority": self.priority,
            "tokens": self.tokens,
        }


def token_digest(token_ids: Sequence[int]) -> str:
    """Lower-case hex SHA-256 of the ids, each as a 4-byte little-endian unsigned integer."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}I", *token_ids)).hexdigest()


def mac_input(fields: Mapping[str, str | int], token_ids: Sequence[int]) -> bytes:
    canonical = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{canonical}\n{token_digest(token_ids)}".encode()


def command_mac(fields: Mapping[str, str | int], token_ids: Sequence[int], key: bytes) -> str:
    return hmac.new(key, mac_input(fields, token_ids), hashlib.sha256).hexdigest()


def encode(fields: Mapping[str, str | int], token_ids: Sequence[int], key: bytes) -> str:
    """The string a client sends, for tests and for clients that share this module."""
    signed = {**fields, "mac": command_mac(fields, token_ids, key)}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def parse(text: object) -> Command:
    """Reads a command strictly: exactly the known fields, of exactly their types."""
    if not isinstance(text, str) or len(text) > MAX_COMMAND_CHARS:
        raise _malformed("a command is a JSON string of bounded length")
    try:
        raw = json.loads(text, object_pairs_hook=_unique_fields)
    except (ValueError, RecursionError):
        raise _malformed("a command is one JSON object without duplicate fields") from None
    if not isinstance(raw, dict) or raw.keys() != _FIELDS:
        raise _malformed("a command has exactly the documented fields")
    strings = {name: _string(name, raw[name]) for name in _STRINGS}
    integers = {name: _integer(name, raw[name]) for name in _INTEGERS}
    if integers.pop("v") != VERSION:
        raise CommandError("UnknownVersion", f"this plugin speaks version {VERSION}")
    command = Command(
        op=strings["op"],
        id=strings["id"],
        epoch=strings["epoch"],
        mac=strings["mac"],
        counter=integers["counter"],
        expiry=integers["expiry"],
        lease=integers["lease"],
        priority=integers["priority"],
        tokens=integers["tokens"],
    )
    _check_meaning(command)
    return command


def _check_meaning(command: Command) -> None:
    if command.op not in OPERATIONS:
        raise _malformed("op is one of " + ", ".join(OPERATIONS))
    if (command.op in NAMELESS) != (command.id == ""):
        raise _malformed("report and warm have an empty id, every other operation names one")
    if not command.id.isprintable():
        # Lone surrogates among others: the answer repeats the id, and must be encodable.
        raise _malformed("an id has printable characters only")
    if command.epoch == "" and command.op != "report":
        raise _malformed("only report may leave the epoch empty")
    if (command.op in COMPUTING) != (command.tokens > 0):
        raise _malformed("pin and warm name a positive number of tokens, every other operation 0")
    if command.op in ("pin", "renew") and not 0 < command.lease <= MAX_LEASE_SECONDS:
        raise _malformed("pin and renew need a lease in seconds, at most a week")
    if command.counter < 0 or command.expiry < 0:
        raise _malformed("counter and expiry are not negative")


def _malformed(message: str) -> CommandError:
    return CommandError("Malformed", message)


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate field")
    return fields


def _string(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_ID_CHARS:
        raise _malformed(f"{name} is a string of at most {MAX_ID_CHARS} characters")
    return value


def _integer(name: str, value: object) -> int:
    # bool is an int in Python and vLLM turns JSON booleans into 0 and 1, so it is refused by type.
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise _malformed(f"{name} is an integer")
    return value


class CommandVerifier:
    """Decides whether a command may act. One per engine epoch; remembers the highest counters.

    Commands may overtake each other on their way, so a counter need not rise: it must be above the
    first one, or above those that are forgotten, and unused. It covers every operation, also a
    report that leaves the epoch empty: otherwise a report copied from a log would reveal the epoch
    to whoever repeats it.
    """

    def __init__(self, key: bytes, epoch: str) -> None:
        self._key = key if len(key) >= MIN_KEY_BYTES else b""
        self._epoch = epoch
        self._used: list[int] = []  # a heap: the lowest is below all that may still come

    def verify(self, command: Command, token_ids: Sequence[int], now: float) -> None:
        """Raises CommandError; accepting uses the counter up. ``now`` is in Unix seconds."""
        if not self._key:
            raise CommandError("NoKey", "the engine has no command key of at least 32 bytes")
        try:
            expected = command_mac(command.fields(), token_ids, self._key)
        except (struct.error, ValueError):
            raise _malformed("the prompt has no token ids that a MAC could cover") from None
        # The MAC goes first: what is told about epoch, counter and clock is for its owner only.
        if not hmac.compare_digest(expected.encode(), command.mac.encode("utf-8", "replace")):
            raise CommandError("BadMac", "the MAC does not match the command and its prompt")
        if now >= command.expiry:
            raise CommandError("Expired", "the command came after its expiry")
        if command.epoch not in ("", self._epoch):
            raise CommandError("WrongEpoch", "the command was made for another engine epoch")
        if self._used and (command.counter <= self._used[0] or command.counter in self._used):
            raise CommandError("Replayed", "the counter was used, or is too old to tell")
        heapq.heappush(self._used, command.counter)
        if len(self._used) > MAX_USED:
            heapq.heappop(self._used)
