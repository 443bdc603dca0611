"""Salts are fetched once, kept while wanted, and bounded."""

from __future__ import annotations

import pytest

from promptprefix.wire import Placement
from promptprefix_sidecar.control_client import ControlError
from promptprefix_sidecar.salts import Salts

from .records import placement


class Source:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: ControlError | None = None

    async def salt(self, placement_id: str) -> str:
        self.asked.append(placement_id)
        if self.error is not None:
            raise self.error
        return f"salt of {placement_id}"


def salted(name: str) -> Placement:
    return placement(name).model_copy(update={"salted": True})


async def test_only_salted_placements_have_one() -> None:
    source = Source()
    salts = Salts(source)
    assert await salts.get(placement("plain")) == ""
    assert await salts.get(salted("a")) == await salts.get(salted("a")) == "salt of a"
    assert source.asked == ["a"]


async def test_what_is_not_wanted_is_forgotten_and_the_rest_is_bounded() -> None:
    source = Source()
    salts = Salts(source, max_salts=2)
    for name in ("a", "b", "c"):
        await salts.get(salted(name))
    assert len(salts) == 2
    salts.keep(frozenset({"c"}))
    assert len(salts) == 1
    await salts.get(salted("c"))
    assert source.asked == ["a", "b", "c"]


async def test_a_failure_is_not_kept() -> None:
    source = Source()
    source.error = ControlError("unreachable", "no")
    salts = Salts(source)
    with pytest.raises(ControlError):
        await salts.get(salted("a"))
    source.error = None
    assert await salts.get(salted("a")) == "salt of a"
