"""vLLM's options are read as vLLM reads them."""

from __future__ import annotations

import pytest

from promptprefix_operator.injection.flags import flags_of


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--scheduler-cls", "a.B"], "a.B"),
        (["--scheduler-cls=a.B"], "a.B"),
        (["--scheduler_cls", "a.B"], "a.B"),
        (["--scheduler_cls=a=b"], "a=b"),
        (["--scheduler-c", "a.B"], "a.B"),
        (["m", "--port", "1", "--scheduler-cls", "a", "--scheduler_cls=b"], "b"),
        (["--scheduler-cls"], None),
        (["--scheduler-cls", "--port"], None),
        (["--", "--scheduler-cls", "a"], None),
        (["--scheduler-class", "a"], None),
        (["--scheduling-policy", "fcfs"], None),
        ([], None),
    ],
)
def test_value(words: list[str], value: str | None) -> None:
    assert flags_of(words).value("scheduler-cls") == value


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["--enable-prefix-caching"], True),
        (["--no-enable-prefix-caching"], False),
        (["--no_enable_prefix_caching"], False),
        (["--no-enable-prefix-caching", "--enable-prefix-caching"], True),
        (["--enable-prefix-caching", "--no-enable-prefix-caching"], False),
        (["--no-enable-pref"], False),
        (["--enable-prompt-tokens-details"], None),
    ],
)
def test_switch(words: list[str], state: bool | None) -> None:
    assert flags_of(words).switch("enable-prefix-caching") is state


def test_several_words_of_the_last_occurrence() -> None:
    flags = flags_of(["--api-key", "a", "--api-key", "b", "c", "--port", "1"])
    assert flags.words("api-key") == ("b", "c")


def test_short_names() -> None:
    flags = flags_of(["-dp", "2", "-dpl=1", "-r", "1", "-dph"])
    assert flags.value("data-parallel-size") == "2"
    assert flags.value("data-parallel-size-local") == "1"
    assert flags.value("node-rank") == "1"
    assert flags.switch("data-parallel-hybrid-lb") is True


def test_a_whole_name_is_not_a_cut_one() -> None:
    flags = flags_of(["--data-parallel-size", "2"])
    assert flags.value("data-parallel-size-local") is None
    assert flags.value("data-parallel-size") == "2"
