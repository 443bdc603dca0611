"""What the engine's KV connector means: a tier that keeps copies, or a mere transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# These hand blocks from one engine to another and keep none, or move no blocks at all.
_TRANSFERS: Final = (
    "DecodeBench",
    "ExampleHiddenStates",
    "MoRIIO",
    "MooncakeConnector",
    "Nixl",
    "P2pNccl",
)


@dataclass(frozen=True)
class Transfer:
    """offload_tier: class names of the connectors that keep copies outside GPU memory.

    kv_role: ``kv_producer`` (prefill), ``kv_consumer`` (decode), ``kv_both`` or nothing.
    """

    offload_tier: str = ""
    kv_role: str = ""


def transfer_of(scheduler: Any) -> Transfer:
    names = [type(each).__name__ for each in _parts(getattr(scheduler, "connector", None))]
    config = getattr(getattr(scheduler, "vllm_config", None), "kv_transfer_config", None)
    return Transfer(
        offload_tier="+".join(name for name in names if not name.startswith(_TRANSFERS)),
        kv_role=str(getattr(config, "kv_role", None) or ""),
    )


def _parts(connector: Any) -> Iterator[Any]:
    parts = getattr(connector, "_connectors", None)
    if isinstance(parts, list) and parts:
        for part in parts:
            yield from _parts(part)
    elif connector is not None:
        yield connector
