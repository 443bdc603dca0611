"""What keeps waiting requests from starting: vLLM's ``schedule`` does not say it."""

from __future__ import annotations

from typing import Any, Final

# What refuses blocks to a request: with no blocks, or with False.
_REFUSING: Final = ("allocate_slots", "can_fit_full_sequence")
_LOOKUP: Final = "get_num_new_matched_tokens"


class Admissions:
    """Notes what one step asked for. The valve opens for want of blocks only.

    blocks_refused: a request got none. connector_waits: a connector does not know yet how much of
    a request it has, and vLLM asks it again in the next step.
    """

    def __init__(self) -> None:
        self.blocks_refused = False
        self.connector_waits = False

    def begin_step(self) -> None:
        self.blocks_refused = False
        self.connector_waits = False

    def watch(self, manager: Any, connector: Any) -> None:
        for name in _REFUSING:
            if callable(getattr(manager, name, None)):
                self._watch_blocks(manager, name)
        if callable(getattr(connector, _LOOKUP, None)):
            self._watch_lookup(connector)

    def _watch_blocks(self, manager: Any, name: str) -> None:
        ask = getattr(manager, name)

        def ask_and_note(*args: Any, **kwargs: Any) -> Any:
            given = ask(*args, **kwargs)
            if given is None or given is False:
                self.blocks_refused = True
            return given

        setattr(manager, name, ask_and_note)

    def _watch_lookup(self, connector: Any) -> None:
        ask = getattr(connector, _LOOKUP)

        def ask_and_note(*args: Any, **kwargs: Any) -> Any:
            found = ask(*args, **kwargs)
            if isinstance(found, tuple) and found and found[0] is None:
                self.connector_waits = True
            return found

        setattr(connector, _LOOKUP, ask_and_note)
