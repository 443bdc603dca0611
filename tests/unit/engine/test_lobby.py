"""Who waits in the lobby, and in which order they are let in."""

from __future__ import annotations

from types import SimpleNamespace

from promptprefix_vllm.lobby import MAX_HELD, Guest, Lobby


def guest(name: str, *, genuine: bool = True, deadline: float = 30.0) -> Guest:
    return Guest(SimpleNamespace(request_id=name), deadline, genuine)


def test_one_at_a_time_and_the_genuine_first() -> None:
    lobby = Lobby()
    first = guest("first")
    assert not lobby.hold(first, users_wait=False)
    lobby.enter(first)
    forged, second = guest("forged", genuine=False), guest("second")
    assert lobby.hold(forged, users_wait=False)
    assert lobby.hold(second, users_wait=False)
    assert lobby.next(0.0, users_wait=False) is None
    lobby.leave("first")
    assert lobby.next(0.0, users_wait=True) is None
    assert lobby.next(0.0, users_wait=False) == second
    lobby.enter(second)
    assert lobby.next(0.0, users_wait=False) is None
    assert lobby.next(30.0, users_wait=True) == forged


def test_refused_commands_take_no_place_of_genuine_ones() -> None:
    lobby = Lobby()
    for number in range(MAX_HELD):
        assert lobby.hold(guest(str(number), genuine=False), users_wait=True)
    assert not lobby.hold(guest("late", genuine=False), users_wait=True)
    assert lobby.hold(guest("a"), users_wait=True)
    lobby.enter(guest("late", genuine=False))
    found = lobby.next(0.0, users_wait=False)
    assert found is not None
    assert found.id == "a"


def test_those_who_wait_can_be_withdrawn() -> None:
    lobby = Lobby()
    for name, genuine in (("a", True), ("b", False), ("c", True)):
        lobby.hold(guest(name, genuine=genuine), users_wait=True)
    assert [each.id for each in lobby.withdraw({"b", "x"})] == ["b"]
    assert [each.id for each in lobby.withdraw(None)] == ["a", "c"]
    assert not lobby
