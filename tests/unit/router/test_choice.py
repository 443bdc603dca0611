"""Which endpoint is chosen, why, and which are next best."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.shapes import SHAPES
from promptprefix.wire import RouteEndpoint
from promptprefix_router.choosing.chooser import Choice, Chooser, Outcome, SpillReason
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.matching.request_head import DeclaringReader

from .samples import DIGEST, MODEL, chooser, endpoint, routes

CHAT = "/v1/chat/completions"
DECLARED = Match(MatchKind.FINGERPRINT, MODEL, frozenset({DIGEST}), ("id-1",), tokens=4096)
SHORT = Match(MatchKind.HEADER, MODEL, frozenset({DIGEST}), ("id-1",), tokens=16)
UNDECLARED = Match(MatchKind.UNDECLARED, MODEL)
NOTHING = Question(CHAT, b"{}")


def question(*texts: str, path: str = CHAT, **changes: Any) -> Question:
    """Return a request with these turns."""
    turns = [{"role": "user", "content": text} for text in texts]
    body = {"model": MODEL, "messages": turns, **changes}
    return Question(path, json.dumps(body).encode())


def where_known(asked: Question, reader: DeclaringReader) -> Question:
    """Return the question as it is where ``reader`` has read one like it."""
    found = Question(asked.path, asked.body)
    object.__setattr__(found, "known", reader.known(asked.body))
    return found


def text(name: str, tokens: int) -> str:
    """Return a text of its own with about so many tokens."""
    return f"{name}{'x' * 10} "[:12] * (tokens // 3)


def reading(*unhealthy: int, **active: int) -> LoadReading:
    """Return a reading with ``e1=3`` for three active requests on endpoint 1."""
    return LoadReading(
        {f"10.0.0.{name[1:]}:8000": count for name, count in active.items()},
        frozenset(f"10.0.0.{last}:8000" for last in unhealthy),
    )


def busy(made: Chooser, ledger: LoadLedger, **active: int) -> Chooser:
    """Let ``made`` know of so many active requests, and of no others."""
    ledger.begin_reading()
    ledger.finish_reading(reading(**active))
    return made


def pool(
    *lasts: int, warm: frozenset[int] = frozenset(), ready: frozenset[int] | None = None
) -> Routes:
    """Return a route table with these endpoints."""
    return routes(
        *(
            endpoint(
                last,
                ready=ready is None or last in ready,
                warm=(DIGEST,) if last in warm else (),
            )
            for last in lasts
        )
    )


def host(choice: Choice) -> int | None:
    """Return the last number of the chosen address."""
    return int(choice.endpoint.host.rpartition(".")[2]) if choice.endpoint else None


@pytest.mark.parametrize(
    ("match", "load", "warm", "ready", "chosen", "outcome", "reason"),
    [
        (DECLARED, reading(e1=1, e2=2, e3=0), {1, 2}, {1, 2, 3}, 1, "warm", None),
        (DECLARED, reading(e1=0, e2=7), {2}, {1, 2, 3}, 2, "warm", None),
        (SHORT, reading(e1=0, e2=7), {2}, {1, 2, 3}, 2, "warm", None),
        (DECLARED, reading(e1=0, e2=30, e3=1), {2}, {1, 2, 3}, 1, "spill", "bound"),
        (DECLARED, reading(e1=20, e2=29, e3=9), {2}, {1, 2, 3}, 3, "spill", "queue"),
        (DECLARED, reading(e1=50, e2=50, e3=49), {2}, {1, 2, 3}, 2, "warm", None),
        (DECLARED, reading(e1=1, e2=2, e3=1), {1}, {2, 3}, 3, "cold", None),
        (DECLARED, reading(2, e1=1, e2=0), {1, 2}, {1, 2, 3}, 1, "warm", None),
        (DECLARED, reading(1, 2, 3, e1=1), {1}, {1, 2, 3}, 1, "warm", None),
        (DECLARED, reading(), {1}, set(), None, "unrouted", None),
        (UNDECLARED, reading(e1=2, e2=1, e3=3), {1}, {1, 2, 3}, 2, "least-loaded", None),
        (Match(MatchKind.UNDECLARED, "x"), reading(), {1}, {1}, None, "unrouted", None),
        (Match(MatchKind.MALFORMED), reading(), {1}, {1}, None, "unrouted", None),
    ],
)
def test_the_table(
    match: Match,
    load: LoadReading,
    warm: set[int],
    ready: set[int],
    chosen: int | None,
    outcome: str,
    reason: str | None,
) -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    made.use(pool(1, 2, 3, warm=frozenset(warm), ready=frozenset(ready)))
    ledger.finish_reading(load)
    choice = made.choose(NOTHING, match)
    assert (host(choice), choice.outcome, choice.reason) == (chosen, outcome, reason)


def test_one_busy_warm_endpoint_leaves_the_others_alone() -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    made.use(pool(1, 2, 3, 4, warm=frozenset({1, 2})))
    busy(made, ledger, e1=90, e2=3, e3=0, e4=0)
    choice = made.choose(NOTHING, DECLARED)
    assert (host(choice), choice.outcome) == (2, Outcome.WARM)


def test_a_prompt_goes_where_its_beginning_was_sent() -> None:
    made = chooser()
    made.use(pool(1, 2, 3, 4, 5))
    first = made.choose(question(text("a", 2000), "hello"), UNDECLARED)
    assert first.outcome is Outcome.HASHED
    second = made.choose(question(text("a", 2000), text("b", 900)), UNDECLARED)
    assert (second.outcome, host(second)) == (Outcome.SEEN, host(first))
    third = made.choose(question(text("a", 2000), text("b", 900), "more"), UNDECLARED)
    assert (third.outcome, host(third)) == (Outcome.SEEN, host(first))


def test_a_talk_goes_where_most_of_it_was_sent() -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    made.use(pool(1, 2))
    talk = (text("s", 2000), text("t", 4000))
    home = host(made.choose(question(*talk), UNDECLARED))
    other = 3 - (home or 0)
    busy(made, ledger, **{f"e{home}": 40})
    spilled = made.choose(question(talk[0], "another talk"), UNDECLARED)
    assert (spilled.outcome, spilled.reason) == (Outcome.SPILL, SpillReason.BOUND)
    assert host(spilled) == other
    busy(made, ledger, **{f"e{home}": 5})
    again = made.choose(question(*talk, "more"), UNDECLARED)
    assert (again.outcome, host(again)) == (Outcome.SEEN, home)
    busy(made, ledger, **{f"e{home}": 17})
    queued = made.choose(question(*talk, "more"), UNDECLARED)
    assert (queued.outcome, queued.reason) == (Outcome.SPILL, SpillReason.QUEUE)


@pytest.mark.parametrize(
    "other",
    [
        question(text("a", 2000), chat_template_kwargs={"enable_thinking": False}),
        question(text("a", 2000), tools=[{"type": "function", "function": {"name": "f"}}]),
        question(text("a", 2000), path="/v1/messages"),
        question("!" + text("a", 2000)),
    ],
)
def test_what_makes_other_blocks_makes_another_prompt(other: Question) -> None:
    made = chooser()
    made.use(pool(1, 2, 3))
    made.choose(question(text("a", 2000)), UNDECLARED)
    assert made.choose(other, UNDECLARED).outcome is Outcome.HASHED


def test_what_is_salted_otherwise_has_other_blocks() -> None:
    made = chooser()
    made.use(pool(1, 2, 3))
    asked = question(text("a", 2000), cache_salt="its client's own counts for nothing")
    made.choose(asked, UNDECLARED)
    salted = replace(UNDECLARED, salt="s")
    assert made.choose(asked, salted).outcome is Outcome.HASHED
    assert made.choose(asked, salted).outcome is Outcome.SEEN
    assert made.choose(question(text("a", 2000)), UNDECLARED).outcome is Outcome.SEEN


def test_another_adapter_has_other_blocks() -> None:
    made = chooser()
    made.use(routes(*(endpoint(n, models=(MODEL, "lora")) for n in (1, 2, 3))))
    made.choose(question(text("a", 2000)), UNDECLARED)
    lora = Match(MatchKind.UNDECLARED, "lora")
    assert made.choose(question(text("a", 2000), model="lora"), lora).outcome is Outcome.HASHED
    assert made.choose(question(text("a", 2000), model="lora"), lora).outcome is Outcome.SEEN


@pytest.mark.parametrize("change", [{"pod_uid": "new"}, {"epoch": "second"}])
def test_an_engine_that_is_new_has_seen_nothing(change: dict[str, str]) -> None:
    made = chooser()
    table = [endpoint(n, epoch="first") for n in (1, 2, 3)]
    made.use(routes(*table))
    home = host(made.choose(question(text("a", 2000)), UNDECLARED))
    made.use(routes(*table))
    assert made.choose(question(text("a", 2000)), UNDECLARED).outcome is Outcome.SEEN
    renewed: list[RouteEndpoint] = [
        each.model_copy(update=change if each.address == f"10.0.0.{home}" else {}) for each in table
    ]
    made.use(routes(*renewed))
    assert made.choose(question(text("a", 2000)), UNDECLARED).outcome is Outcome.HASHED


def test_an_endpoint_that_left_and_came_back_has_seen_nothing() -> None:
    made = chooser()
    made.use(pool(1, 2, 3))
    home = host(made.choose(question(text("a", 2000)), UNDECLARED)) or 0
    made.use(pool(*({1, 2, 3} - {home})))
    made.use(pool(1, 2, 3))
    assert made.choose(question(text("a", 2000)), UNDECLARED).outcome is Outcome.HASHED


def test_a_prompt_that_was_seen_where_nothing_is_ready_goes_elsewhere() -> None:
    made = chooser()
    made.use(pool(1, 2, 3))
    home = host(made.choose(question(text("a", 2000)), UNDECLARED)) or 0
    made.use(pool(1, 2, 3, ready=frozenset({1, 2, 3} - {home})))
    choice = made.choose(question(text("a", 2000)), UNDECLARED)
    assert choice.outcome is Outcome.HASHED
    assert host(choice) != home


def test_without_a_history_the_least_loaded_take_turns() -> None:
    made = chooser(history=None)
    made.use(pool(1, 2, 3))
    chosen = [made.choose(question(text("a", 2000)), UNDECLARED) for _ in range(6)]
    assert {choice.outcome for choice in chosen} == {Outcome.LEAST_LOADED}
    assert [host(choice) for choice in chosen] == [1, 2, 3, 1, 2, 3]


def test_a_turn_passes_also_when_each_request_ends_before_the_next() -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    made.use(pool(1, 2, 3))
    order = [host(busy(made, ledger).choose(NOTHING, UNDECLARED)) for _ in range(6)]
    assert order == [1, 2, 3, 1, 2, 3]


def test_new_talks_of_a_warm_prefix_spread_over_those_that_hold_it() -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    made.use(pool(*range(1, 9), warm=frozenset({2, 5, 7})))
    chosen = [
        host(busy(made, ledger).choose(question(text("s", 900), text(f"{n}", 900)), DECLARED))
        for n in range(60)
    ]
    assert {chosen.count(last) > 5 for last in (2, 5, 7)} == {True}
    assert set(chosen) == {2, 5, 7}


def test_a_cold_burst_of_a_declared_prefix_lands_together() -> None:
    made = chooser(history=None)
    made.use(pool(*range(1, 21)))
    first, second = (made.choose(NOTHING, DECLARED) for _ in range(2))
    assert (first.outcome, second.outcome) == (Outcome.COLD, Outcome.COLD)
    # The first is at the mean already: the second goes to the next on the ring.
    assert second.endpoint == first.fallbacks[0]


def test_the_subset_of_a_gateway_bounds_the_fallbacks_as_well() -> None:
    made = chooser()
    made.use(pool(*range(1, 9), warm=frozenset({1})))
    subset = frozenset({"10.0.0.2:8000", "10.0.0.3:8000"})
    asked = Question(CHAT, question(text("a", 2000)).body, subset=subset)
    choice = made.choose(asked, DECLARED)
    assert choice.endpoint is not None
    assert {choice.endpoint.address, *(each.address for each in choice.fallbacks)} == subset


requests = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([DECLARED, SHORT, UNDECLARED])),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(
    loads=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    warm=st.frozensets(st.integers(0, 7)),
    ready=st.frozensets(st.integers(0, 7)),
    asked=requests,
)
def test_every_choice_is_ready_bounded_and_said_truly(
    loads: list[int],
    warm: frozenset[int],
    ready: frozenset[int],
    asked: list[tuple[int, int, Match]],
) -> None:
    ledger = LoadLedger()
    made = chooser(ledger)
    table = pool(*range(len(loads)), warm=warm, ready=ready)
    made.use(table)
    busy(made, ledger, **{f"e{n}": load for n, load in enumerate(loads)})
    usable = {n for n in range(len(loads)) if n in ready}
    for opening, talk, match in asked:
        before = {n: ledger.load(f"10.0.0.{n}:8000") for n in usable}
        choice = made.choose(question(text(f"{opening}", 1500), text(f"t{talk}", 700)), match)
        if not usable:
            assert choice == Choice(Outcome.UNROUTED)
            continue
        chosen = host(choice)
        assert chosen in usable
        named = [chosen, *(host(Choice(choice.outcome, each)) for each in choice.fallbacks)]
        assert len(set(named)) == len(named) == min(3, len(usable))
        assert set(named) <= usable
        assert ledger.load(f"10.0.0.{chosen}:8000") == before[chosen] + 1
        mean = (sum(before.values()) + 1) / len(usable)
        assert before[chosen] + 1 <= 1.25 * mean + 8
        declared = match is not UNDECLARED
        if declared:
            assert (choice.outcome is Outcome.WARM) == (chosen in warm)
            assert (choice.outcome is Outcome.COLD) == (not warm & usable)
        assert (choice.reason is not None) == (choice.outcome is Outcome.SPILL)


@settings(max_examples=30, deadline=None)
@given(asked=requests, tables=st.lists(st.frozensets(st.integers(1, 6), min_size=2), max_size=3))
def test_choosers_with_the_same_tables_and_requests_agree(
    asked: list[tuple[int, int, Match]], tables: list[frozenset[int]]
) -> None:
    """Also if one of them has known other endpoints before."""
    ledgers = LoadLedger(), LoadLedger()
    one, two = (chooser(ledger) for ledger in ledgers)
    for lasts in tables:
        one.use(pool(*lasts))
    for made in (one, two):
        made.use(pool(*range(1, 10), warm=frozenset({3, 4})))
    for opening, talk, match in asked:
        asked_one = question(text(f"{opening}", 1500), text(f"t{talk}", 700))
        first, second = (made.choose(asked_one, match) for made in (one, two))
        assert first == second


def test_choosers_that_never_talked_agree_on_a_cold_prompt() -> None:
    for number in range(50):
        one, two = chooser(), chooser()
        one.use(pool(*range(1, 41)))
        two.use(pool(*range(40, 0, -1)))
        asked = question(text(f"n{number}", 2000), f"from {number}")
        other = question(text(f"n{number}", 2000), "from elsewhere")
        assert host(one.choose(asked, UNDECLARED)) == host(two.choose(other, UNDECLARED))


def test_whether_one_like_it_was_read_before_changes_no_choice() -> None:
    reader = DeclaringReader(SHAPES[CHAT])
    turns = [{"role": "system", "content": text("desk", 600)}, {"role": "user", "content": "first"}]
    body = json.dumps({"model": MODEL, "messages": turns}).encode()
    reader.remember(body, reader.read(body))
    one, two = chooser(), chooser()
    for made in (one, two):
        made.use(pool(*range(1, 10), warm=frozenset({3, 4, 5})))
    chosen = set()
    for number in range(30):
        turns[-1] = {"role": "user", "content": f"talk {number}"}
        new = Question(CHAT, json.dumps({"model": MODEL, "messages": turns}).encode())
        like = where_known(new, reader)
        assert new.known is None
        assert like.known is not None
        choice = one.choose(new, DECLARED)
        assert choice == two.choose(like, DECLARED)
        chosen.add(host(choice))
    assert chosen == {3, 4, 5}


def test_the_knobs_are_in_force() -> None:
    ledger = LoadLedger()
    made = chooser(ledger, knobs=CostKnobs(1, 1.0, 1))
    made.use(pool(1, 2, 3, warm=frozenset({1})))
    busy(made, ledger, e1=1)
    assert made.choose(NOTHING, DECLARED).reason is SpillReason.BOUND
