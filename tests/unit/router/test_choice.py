"""Which endpoint is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix_router.choice import Choice, Chooser, Outcome
from promptprefix_router.load import LoadLedger, LoadReading
from promptprefix_router.matching import Match, MatchKind, Question
from promptprefix_router.routes import Routes

from .samples import DIGEST, MODEL, endpoint, routes

DECLARED = Match(MatchKind.FINGERPRINT, MODEL, frozenset({DIGEST}))
UNDECLARED = Match(MatchKind.UNDECLARED, MODEL)
QUESTION = Question("/v1/chat/completions", b"{}")


def ledger(*unhealthy: int, **active: int) -> LoadLedger:
    """Return a ledger with ``e1=3`` for three active requests on endpoint 1."""
    book = LoadLedger()
    book.finish_reading(
        LoadReading(
            {f"10.0.0.{name[1:]}:8000": count for name, count in active.items()},
            frozenset(f"10.0.0.{last}:8000" for last in unhealthy),
        )
    )
    return book


def choose(pool: Routes, match: Match, book: LoadLedger) -> Choice:
    """Choose for a request."""
    return Chooser(book).choose(pool, QUESTION, match)


@pytest.mark.parametrize(
    ("match", "load", "warm", "ready", "chosen", "outcome"),
    [
        (DECLARED, ledger(e1=0, e2=9), {2}, {1, 2, 3}, 2, Outcome.WARM),
        (DECLARED, ledger(e1=1, e2=2, e3=0), {1, 2}, {1, 2, 3}, 1, Outcome.WARM),
        (DECLARED, ledger(e1=1, e2=2, e3=0), {1}, {2, 3}, 3, Outcome.COLD),
        (DECLARED, ledger(e1=1, e2=2, e3=3), set(), {1, 2, 3}, 1, Outcome.COLD),
        (UNDECLARED, ledger(e1=2, e2=1, e3=3), {1}, {1, 2, 3}, 2, Outcome.LEAST_LOADED),
        (DECLARED, ledger(2, e1=1, e2=0), {1, 2}, {1, 2, 3}, 1, Outcome.WARM),
        (DECLARED, ledger(1, 2, 3, e1=1), {1}, {1, 2, 3}, 1, Outcome.WARM),
        (DECLARED, ledger(), {1}, set(), None, Outcome.UNROUTED),
        (Match(MatchKind.UNDECLARED, "x"), ledger(), {1}, {1}, None, Outcome.UNROUTED),
        (Match(MatchKind.MALFORMED), ledger(), {1}, {1}, None, Outcome.UNROUTED),
    ],
)
def test_the_table(
    match: Match,
    load: LoadLedger,
    warm: set[int],
    ready: set[int],
    chosen: int | None,
    outcome: Outcome,
) -> None:
    pool = routes(
        *(endpoint(n, ready=n in ready, warm=(DIGEST,) if n in warm else ()) for n in (1, 2, 3))
    )
    choice = choose(pool, match, load)
    assert choice.outcome is outcome
    assert (choice.endpoint.host if choice.endpoint else None) == (
        f"10.0.0.{chosen}" if chosen else None
    )


@settings(max_examples=50, deadline=None)
@given(
    loads=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    warm=st.sets(st.integers(0, 7)),
    ready=st.sets(st.integers(0, 7)),
)
def test_never_a_busier_one_of_the_same_kind(
    loads: list[int], warm: set[int], ready: set[int]
) -> None:
    book = ledger(**{f"e{n}": load for n, load in enumerate(loads)})
    pool = routes(
        *(
            endpoint(n, ready=n in ready, warm=(DIGEST,) if n in warm else ())
            for n in range(len(loads))
        )
    )
    before = {n: book.load(f"10.0.0.{n}:8000") for n in range(len(loads))}
    choice = choose(pool, DECLARED, book)
    usable = [n for n in range(len(loads)) if n in ready]
    if not usable:
        assert choice.endpoint is None
        return
    best = [n for n in usable if n in warm] or usable
    assert choice.endpoint is not None
    assert before[int(choice.endpoint.host.rpartition(".")[2])] == min(loads[n] for n in best)
    assert book.load(choice.endpoint.address) == min(loads[n] for n in best) + 1
    assert choice.outcome is (Outcome.WARM if best[0] in warm else Outcome.COLD)
