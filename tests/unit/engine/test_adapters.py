"""Which adapter of a name is the current one."""

from __future__ import annotations

from types import SimpleNamespace

from promptprefix_vllm.adapters import MAX_ADAPTERS, Adapter, AdapterRoster, adapter_of


def test_the_newest_load_of_a_name_is_current() -> None:
    roster = AdapterRoster()
    first, second = Adapter("a", 1, "/p"), Adapter("a", 2, "/p")
    assert [roster.see(each) for each in (first, first, second, first, second)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert [roster.is_outdated(each) for each in (first, second, Adapter("b", 1), None)] == [
        True,
        False,
        False,
        False,
    ]
    # In place and at another path an adapter keeps its number.
    assert roster.see(Adapter("a", 2, "/other"))
    assert roster.see(Adapter("a", 2, "/other", in_place=True))


def test_it_is_bounded() -> None:
    roster = AdapterRoster()
    for number in range(MAX_ADAPTERS + 1):
        roster.see(Adapter(str(number), number))
    assert roster.see(Adapter("0", 0))
    assert not roster.see(Adapter(str(MAX_ADAPTERS), MAX_ADAPTERS))


def test_requests_as_vllm_makes_them() -> None:
    lora = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="/p", load_inplace=True)
    assert adapter_of(SimpleNamespace(lora_request=lora)) == Adapter("a", 3, "/p", True)
    assert adapter_of(SimpleNamespace(lora_request=None)) is None
    assert adapter_of(SimpleNamespace()) is None
