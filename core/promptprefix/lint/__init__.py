"""The linter: what in a declared text keeps it from being reused, and how to fix it.

One function for the operator, the command line and the router. A rule is a module here; its first
lines say what it looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice

from promptprefix import resource
from promptprefix.lint import conversation, length, timestamp, tool_json
from promptprefix.lint.hit import RENDERED_ORDER, Hit, Rule
from promptprefix.payload import Payload
from promptprefix.tokens import estimate_tokens

PLACE_RULES: dict[str, Rule] = {
    timestamp.RULE: timestamp.dynamic_timestamps,
    tool_json.RULE: tool_json.unstable_tools,
    conversation.RULE: conversation.conversations,
}
RULES = (*PLACE_RULES, length.RULE)
"""Ids of all rules."""

MAX_PER_RULE = resource.MAX_LINT // len(RULES)
"""So that no rule crowds out another; the first place of a rule costs the most anyway."""


def lint_payload(
    payload: Payload,
    *,
    model: str = "",
    count_tokens: Callable[[str], int] | None = None,
    ignore: Collection[str] = (),
) -> list[resource.LintFinding]:
    """Return the findings in ``payload``, sorted by place, at most `resource.MAX_LINT`.

    ``count_tokens`` counts the tokens of a text; without it numbers are UTF-8 bytes over four and
    called estimated. ``ignore`` holds ids of rules to leave out. A text that can't be parsed has
    no findings of the rules that need to parse it.
    """
    meter = _Meter(payload, count_tokens)
    hits = [
        hit
        for name, rule in PLACE_RULES.items()
        if name not in ignore
        for hit in islice(rule(payload), MAX_PER_RULE)
    ]
    if length.RULE not in ignore:
        total = meter.total()
        hits += length.short_prefix(payload, total, meter.words(total), model)
    return [meter.finding(hit) for hit in sorted(hits, key=_place)]


def _place(hit: Hit) -> tuple[int, int, str]:
    return RENDERED_ORDER.index(hit.path), hit.offset, hit.rule


@dataclass(frozen=True)
class _Meter:
    """Counts tokens of one payload, in the order in which templates print its fields."""

    payload: Payload
    count_tokens: Callable[[str], int] | None

    def total(self) -> int:
        return self._count(self.payload.system) + self._count(self._tools())

    def after(self, path: str, offset: int) -> int:
        """Return the tokens from a place to the end of the prefix."""
        tail = getattr(self.payload, path)[offset:]
        if path == "toolDefinitions":
            return self._count(tail)
        if path == "systemInstructions" and self.payload.defaultModeSpecs:
            tail = f"{tail}\n\n{self.payload.defaultModeSpecs}"
        return self._count(tail) + self._count(self._tools())

    def words(self, tokens: int) -> str:
        return f"{tokens} tokens" if self.count_tokens else f"{tokens} tokens (estimated)"

    def finding(self, hit: Hit) -> resource.LintFinding:
        lost = self.after(hit.path, hit.offset) if hit.loses else 0
        cost = f": the {self.words(lost)} from here on can never be reused" if hit.loses else ""
        return resource.LintFinding(
            rule=hit.rule,
            severity=hit.severity,
            path=hit.path,
            offset=hit.offset,
            tokensLost=lost,
            message=f"{hit.cause}{cost}; {hit.fix}",
        )

    def _tools(self) -> str:
        text = self.payload.toolDefinitions
        return "" if "".join(text.split()) in ("", "[]") else text

    def _count(self, text: str) -> int:
        if not text:
            return 0
        return self.count_tokens(text) if self.count_tokens else estimate_tokens(text)
