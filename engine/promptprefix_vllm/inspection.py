"""Whether pins are still whole, looked up bit by bit: a report is made between two steps.

A held block stays cached unless another party takes it out of the cache, which vLLM does hardly
ever; an engine may hold a hundred thousand of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from promptprefix_vllm.pins import HeldBlock, Pin, PinTable

# Of one report, about a millisecond. It looks at one pin at least, however large.
MAX_BLOCKS: Final = 2048


@dataclass(frozen=True)
class Found:
    """Tokens of a pin: what a request would find cached, and what is held and still cached."""

    resident: int
    pinned: int


class Inspector:
    """Remembers what was found of each pin of the table; those looked at longest ago come first."""

    def __init__(self, table: PinTable, max_blocks: int = MAX_BLOCKS) -> None:
        self._table = table
        self._max_blocks = max_blocks
        self._known: OrderedDict[str, tuple[tuple[HeldBlock, ...], Found]] = OrderedDict()

    def look(self) -> Mapping[str, Found]:
        """Every pin of the table by id, some of them looked at now."""
        pins = {pin.id: pin for pin in self._table.pins}
        self._follow(pins)
        left = self._max_blocks
        for pin_id in tuple(self._known):
            pin = pins[pin_id]
            self.found(pin)
            left -= len(pin.held)
            if left <= 0:
                break
        return {pin_id: found for pin_id, (_, found) in self._known.items()}

    def found(self, pin: Pin) -> Found:
        """One pin of the table, looked at now."""
        pinned = self._table.pinned_tokens(pin)
        whole = pinned == len(pin.hashes) * self._table.block_size
        found = Found(pinned if whole else self._table.resident_tokens(pin), pinned)
        self._known[pin.id] = (pin.held, found)
        self._known.move_to_end(pin.id)
        return found

    def _follow(self, pins: Mapping[str, Pin]) -> None:
        """Forgets pins that went. One that is pinned anew was found whole by that."""
        for pin_id in [each for each in self._known if each not in pins]:
            del self._known[pin_id]
        for pin in pins.values():
            known = self._known.get(pin.id)
            if known is None or known[0] is not pin.held:
                tokens = len(pin.hashes) * self._table.block_size
                self._known[pin.id] = (pin.held, Found(tokens, tokens))
                self._known.move_to_end(pin.id)
