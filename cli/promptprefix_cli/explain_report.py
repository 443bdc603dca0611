"""What ``explain`` prints: one line for each request, or the same as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from promptprefix.near_miss import FIXES
from promptprefix_cli.explanation import Explanation, Verdict
from promptprefix_cli.report import Output, data_report
from promptprefix_cli.router_examples import SeenByRouter, SeenNearMiss


def explain_report(found: Sequence[Explanation], output: Output) -> str:
    """Return the verdicts."""
    if output is Output.TEXT:
        return "".join(f"{each.request}: {_words(each)}\n" for each in found)
    return data_report([_row(each) for each in found], output)


def seen_report(seen: Sequence[SeenByRouter], output: Output) -> str:
    """Return what routers saw."""
    if output is Output.TEXT:
        return "".join(_lines(seen))
    return data_report([each.model_dump() for each in seen], output)


def _words(each: Explanation) -> str:
    match each.verdict:
        case Verdict.MATCH:
            return f"match: {each.prefix}"
        case Verdict.HEAD:
            return f"head: begins as {each.prefix} (about {each.tokens} tokens); {each.fix}"
        case Verdict.NEAR_MISS:
            return (
                f"near miss: {each.prefix}: {each.cause} at {_where(each)}; about "
                f"{each.tokens_lost} of {each.tokens} tokens lost; {each.fix}"
            )
        case Verdict.UNDECLARED:
            return f"undeclared: {each.cause}: {each.fix}"
    return f"no match: {each.fix}"


def _where(each: Explanation) -> str:
    if each.line:
        return f"{each.field}, line {each.line}, column {each.column}"
    return f"{each.field}, character {each.offset}" if each.offset else each.field


def _row(each: Explanation) -> dict[str, object]:
    row = asdict(each)
    row["verdict"], row["cause"] = str(each.verdict), str(each.cause)
    return {"tokensLost" if key == "tokens_lost" else key: value for key, value in row.items()}


def _lines(seen: Sequence[SeenByRouter]) -> Iterator[str]:
    if not any(each.nearMisses for each in seen):
        yield "no near miss was seen\n"
    for each in sorted((miss for router in seen for miss in router.nearMisses), key=_newest):
        yield (
            f"{each.time} {each.prefix} ({each.api}): {each.cause} at {each.field}, character "
            f"{each.offset}; about {each.tokensLost} tokens lost; {_fix(each.cause)}\n"
        )
    for router in seen:
        for cause, count in router.undeclared.items():
            yield f"undeclared, {cause}: {count}\n"


def _newest(each: SeenNearMiss) -> tuple[int, ...]:
    return tuple(-ord(character) for character in each.time)


def _fix(cause: str) -> str:
    """Return the fix; a router that is newer may know other causes."""
    return next((fix for each, fix in FIXES.items() if each == cause), "see docs/near-misses.md")
