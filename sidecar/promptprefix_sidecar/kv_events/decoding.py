"""Reading of vLLM's event batches: msgpack, tolerant of what versions add, drop or spell otherwise.

A batch and an event are maps or arrays. As arrays their fields come in the order below, of which
older versions send a beginning and newer ones more; the tag of an event is its key ``type`` or its
first item.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec

from promptprefix.tokens import token_bytes
from promptprefix_sidecar.kv_events.events import (
    GPU,
    Batch,
    BlockHash,
    Cleared,
    Event,
    Removed,
    Stored,
)

BATCH_FIELDS = ("ts", "events", "data_parallel_rank")
EVENT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip

Fields = Mapping[str, object]


class BatchError(ValueError):
    """The payload is no batch of events."""


class _BrokenError(ValueError):
    """A field of a known event can't be read."""


def decode_batch(payload: bytes) -> Batch:
    """Return the batch; raise `BatchError` and nothing else."""
    try:
        raw: object = msgspec.msgpack.decode(payload)
    except (ValueError, TypeError, RecursionError) as error:
        raise BatchError(f"not a msgpack value ({type(error).__name__})") from error
    fields = _fields(raw, BATCH_FIELDS)
    items = fields.get("events")
    at = fields.get("ts")
    if not isinstance(items, list) or not isinstance(at, int | float):
        raise BatchError("not a batch of events")
    events: list[Event] = []
    unknown = broken = 0
    for item in items:
        try:
            event = _event(item)
        except _BrokenError:
            broken += 1
            continue
        if event is None:
            unknown += 1
        else:
            events.append(event)
    rank = fields.get("data_parallel_rank")
    return Batch(float(at), tuple(events), rank if isinstance(rank, int) else 0, unknown, broken)


def _fields(raw: object, names: Sequence[str]) -> Fields:
    if isinstance(raw, dict):
        return raw
    if isinstance(raw, list):
        return dict(zip(names, raw, strict=False))
    raise BatchError("neither a map nor an array")


def _event(raw: object) -> Event | None:
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        names = EVENT_FIELDS.get(tag, ()) if isinstance(tag, str) else ()
        fields = dict(zip(names, raw[1:], strict=False))
    else:
        return None
    match tag:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return Removed(_hashes(fields), _medium(fields), _whole(fields, "group_idx", 0))
        case "AllBlocksCleared":
            return Cleared()
    return None


def _stored(fields: Fields) -> Stored:
    parent = fields.get("parent_block_hash")
    kind = fields.get("kv_cache_spec_kind")
    lora = _lora(fields)
    return Stored(
        hashes=_hashes(fields),
        parent=None if parent is None else _hash(parent),
        tokens=_tokens(fields),
        block_size=_whole(fields, "block_size", 0),
        medium=_medium(fields),
        lora=lora,
        salt=_salt(fields.get("extra_keys"), lora),
        group=_whole(fields, "group_idx", 0),
        kind=kind if isinstance(kind, str) else "",
    )


def _hashes(fields: Fields) -> tuple[BlockHash, ...]:
    raw = fields.get("block_hashes")
    if not isinstance(raw, list):
        raise _BrokenError
    return tuple(_hash(item) for item in raw)


def _hash(raw: object) -> BlockHash:
    if isinstance(raw, bytes | int | str) and not isinstance(raw, bool):
        return raw
    raise _BrokenError


def _tokens(fields: Fields) -> bytes:
    raw = fields.get("token_ids")
    if not isinstance(raw, list):
        raise _BrokenError
    try:
        return token_bytes(raw)
    except struct.error as error:
        raise _BrokenError from error


def _whole(fields: Fields, name: str, absent: int) -> int:
    raw = fields.get(name)
    if raw is None:
        return absent
    if isinstance(raw, int) and raw >= 0:
        return int(raw)
    raise _BrokenError


def _medium(fields: Fields) -> str:
    raw = fields.get("medium")
    return raw.upper() if isinstance(raw, str) and raw else GPU


def _lora(fields: Fields) -> str | None:
    """Return the adapter's name; None where an old version gives only its number."""
    name = fields.get("lora_name")
    if isinstance(name, str) and name:
        return name
    return "" if fields.get("lora_id") is None else None


def _salt(raw: object, lora: str | None) -> str | None:
    """Return the salt of the first block, "" without one, None if there is more than text.

    ``raw`` holds one list of keys a block, bare values in this order: the adapter's name, pairs of
    an image, the salt, digests of embeddings. Keys that say what they are come as pairs.
    """
    if raw is None:
        return ""
    if not isinstance(raw, list):
        return None
    salt = ""
    for index, keys in enumerate(raw):
        for place, key in enumerate(keys if isinstance(keys, list) else ()):
            match key:
                case str() if lora and key == lora and place == 0:
                    continue
                case ["lora", *_]:
                    continue
                case (str() as value) | ["cache_salt", str() as value] if index == 0 and not salt:
                    salt = value
                case _:
                    return None
    return salt
