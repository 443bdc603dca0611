"""vLLM's command-line options, as its own parser reads them (argparse, vLLM 0.32).

Names may be spelled with underscores, given as ``--name value`` or ``--name=value``, or cut short
where that is unambiguous; of repeated options the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SHORT: Final = {
    "-dp": "data-parallel-size",
    "-dpl": "data-parallel-size-local",
    "-dpn": "data-parallel-rank",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-r": "node-rank",
}
_JOINED: Final = re.compile(r"^(-r)([0-9].*)", re.DOTALL)
"""One letter may be followed by its value at once."""

_NAMES: Final = frozenset(
    {
        "api-key",
        "config",
        "enable-prefix-caching",
        "grpc",
        "headless",
        "host",
        "kv-events-config",
        "port",
        "scheduler-cls",
        "ssl-cert-reqs",
        "ssl-certfile",
        "ssl-keyfile",
        "uds",
        *_SHORT.values(),
    }
)
_NEGATED: Final = {f"no-{name}": name for name in _NAMES}
_SHORTEST: Final = 3
"""Characters from which on a cut name is looked for; shorter ones are ambiguous to vLLM."""


@dataclass(frozen=True)
class Flags:
    """options: each occurrence of an option that matters here, in order: name, words, negated."""

    options: tuple[tuple[str, tuple[str, ...], bool], ...] = ()

    def words(self, name: str) -> tuple[str, ...] | None:
        """Return the words after the last occurrence; None if there is none."""
        return next((words for each, words, _ in reversed(self.options) if each == name), None)

    def value(self, name: str) -> str | None:
        """Return the value of an option that takes one."""
        words = self.words(name)
        return words[0] if words else None

    def switch(self, name: str) -> bool | None:
        """Whether a switch is on, off, or not given (None)."""
        return next((not off for each, _, off in reversed(self.options) if each == name), None)


def flags_of(words: Sequence[str]) -> Flags:
    """Read the options in the words after ``vllm serve``; after ``--`` there are none."""
    options: list[tuple[str, tuple[str, ...], bool]] = []
    end = words.index("--") if "--" in words else len(words)
    for index, word in enumerate(words[:end]):
        name, equals, value = _JOINED.sub(r"\1=\2", word).partition("=")
        known, negated = _known(name)
        if known is None:
            continue
        values = (value,) if equals else _values(words[index + 1 : end])
        options.append((known, values, negated))
    return Flags(tuple(options))


def _values(words: Sequence[str]) -> tuple[str, ...]:
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return tuple(words[:count])


def _known(word: str) -> tuple[str | None, bool]:
    """Return which option a word names, and whether it is switched off."""
    if word in _SHORT:
        return _SHORT[word], False
    if not word.startswith("--"):
        return None, False
    name = word[2:].replace("_", "-")
    if name in _NAMES:
        return name, False
    if name in _NEGATED:
        return _NEGATED[name], True
    cut = [each for each in (*_NAMES, *_NEGATED) if each.startswith(name)]
    if len(name) < _SHORTEST or len(cut) != 1:
        return None, False
    return _NEGATED.get(cut[0], cut[0]), cut[0] in _NEGATED
