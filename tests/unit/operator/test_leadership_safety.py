"""No two processes may act at once, whatever happens to the Lease, the answers and the clocks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operator.candidates import Machine, Store

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["try", "all"] * 4,
                "release",
                "reset",
                "delete",
                "drop",
                "cut",
                "fresh",
                *["oust"] * 2,
            ]
        ),
        st.integers(0, 2),
        st.sampled_from([0.1, 1.0, 2.0, 4.0, 7.0]),
    ),
    min_size=20,
    max_size=60,
)


@dataclass
class Game:
    """Three replicas, each replaced at times while the process before it may still act."""

    store: Store
    slots: list[Machine]
    machines: list[Machine] = field(default_factory=list)
    gone: list[Machine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machines += self.slots

    async def step(self, action: str, index: int) -> None:
        machine = self.slots[index]
        match action:
            case "drop":
                self.store.lost_answers = 1
            case "reset":
                self.store.reset()
            case "delete":
                self.store.lease = None
            case "cut":
                machine.cut = not machine.cut
            case "fresh":
                self._replace(index)
            case "oust":  # all at once what is rare by chance: a leader that nobody can know of
                for each in self.machines:
                    each.cut = each.leads
                self.store.lease = None
                for slot in range(3):
                    self._replace(slot)
            case "release":
                await machine.candidate.release()
                self.gone.append(machine)
            case "try":
                await self._try(machine)
            case "all":
                for each in self.slots[index:] + self.slots[:index]:
                    await self._try(each)

    async def _try(self, machine: Machine) -> None:
        if not any(machine is each for each in self.gone):
            await machine.attempt()

    def _replace(self, index: int) -> None:
        before = self.slots[index]
        name = f"{before.name}+"
        self.slots[index] = Machine(self.store, name, before.time, signed=before.signed)
        self.machines.append(self.slots[index])

    def check(self) -> None:
        leading = [each.name for each in self.machines if each.leads]
        assert len(leading) <= 1
        assert not leading or self.store.record.holder in ("", *leading)


@settings(max_examples=200)
@given(
    steps=STEPS,
    skews=st.tuples(*[st.floats(-1e6, 1e6)] * 3),
    created=st.booleans(),
    signed=st.booleans(),
)
def test_two_never_act_at_once(
    steps: list[tuple[str, int, float]], skews: tuple[float, ...], created: bool, signed: bool
) -> None:
    """Whatever each candidate does and whenever, under any clocks that run at one rate."""

    async def play() -> None:
        store = Store() if created else Store(lease=None)
        slots = [
            Machine(store, name, time=skew, signed=signed)
            for name, skew in zip("abc", skews, strict=True)
        ]
        game = Game(store, slots)
        for action, index, pause in steps:
            for machine in game.machines:
                machine.time += pause
            await game.step(action, index)
            game.check()

    asyncio.run(play())
