"""LoRA adapters as a request names them, and which of them is the current one of its name.

vLLM's block hashes cover an adapter's name and path, not its weights: after other weights were
loaded from the same path, blocks computed with the old ones would still be hits. A new load has a
new number, so the number tells the two apart; an adapter that is loaded in place keeps its number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

MAX_ADAPTERS: Final = 1024


@dataclass(frozen=True)
class Adapter:
    """number: vLLM's id of this load of the adapter, rising. in_place: its weights may change."""

    name: str
    number: int
    path: str = ""
    in_place: bool = False


def adapter_of(request: Any) -> Adapter | None:
    """The adapter of a vLLM request; None for the base model."""
    lora = getattr(request, "lora_request", None)
    if lora is None:
        return None
    return Adapter(
        name=str(getattr(lora, "lora_name", "")),
        number=int(getattr(lora, "lora_int_id", 0)),
        path=str(getattr(lora, "lora_path", "")),
        in_place=bool(getattr(lora, "load_inplace", False)),
    )


class AdapterRoster:
    """The current adapter of each name: the newest that a request named. Bounded."""

    def __init__(self) -> None:
        self._current: OrderedDict[str, Adapter] = OrderedDict()

    def see(self, adapter: Adapter) -> bool:
        """Whether this is another adapter than the one known under the name, or an unknown one."""
        known = self._current.get(adapter.name)
        if known == adapter or self.is_outdated(adapter):
            return False
        self._current[adapter.name] = adapter
        self._current.move_to_end(adapter.name)
        if len(self._current) > MAX_ADAPTERS:
            self._current.popitem(last=False)
        return True

    def is_outdated(self, adapter: Adapter | None) -> bool:
        """Whether a newer one of its name was seen; requests that were underway still name it."""
        known = None if adapter is None else self._current.get(adapter.name)
        return adapter is not None and known is not None and adapter.number < known.number
