"""Rule ``dynamic-timestamp``: dates and times that look as if a program had put them in.

A full timestamp always looks generated. A bare date does so only beside a word such as "today" or
"current". Both are left alone in a sentence that says why a fixed date stands there: an example, a
format, the day from which a policy holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from promptprefix.lint.hit import Hit, field_texts
from promptprefix.payload import Payload

RULE = "dynamic-timestamp"

BEFORE = 60
AFTER = 24
"""Characters of the sentence that are looked at before and after a date."""

MAX_CANDIDATES = 1_000
"""Dates of one kind in one field that are looked at; a text with more is a table of dates."""

MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
WEEKDAY = (
    r"(?:Mon(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:rs(?:day)?)?|Fri(?:day)?"
    r"|Sat(?:urday)?|Sun(?:day)?)\b"
)
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
DATES = (
    r"\d{4}[-/]\d{2}[-/]\d{2}",
    rf"{DAY} (?:of )?{MONTH},? \d{{4}}",
    rf"{MONTH} {DAY},? \d{{4}}",
    r"\d{1,2}/\d{1,2}/\d{4}",
    r"\d{1,2}\.\d{1,2}\.\d{4}",
)

STAMP = re.compile(
    rf"\b(?:\d{{4}}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}}"  # ISO 8601
    r"|\d{8}T\d{4,6}Z?\b"  # ISO 8601, basic format
    rf"|{WEEKDAY},? {DAY} {MONTH} \d{{4}}"  # RFC 2822, long dates
    rf"|{WEEKDAY},? {MONTH} {{1,2}}{DAY},? (?:\d{{4}}|\d{{2}}:\d{{2}}))"  # ctime, long dates
)
DATE = re.compile(rf"(?<![\w./-])(?:{'|'.join(DATES)}|{WEEKDAY})(?![\w/-])")
CLOCK = re.compile(r"(?<![\w:.-])\d{1,2}:\d{2}(?![\w-])")
EPOCH = re.compile(r"(?<![\w.])(?:1[5-9]|20)\d{8}(?:\d{3})?(?![\w.])")

NOW = re.compile(
    r"(?<![a-z])(?:today|now|current|currently|generated|rendered|as of)(?![a-z])"
    r"|^\W*(?:date|time|datetime|timestamp)\b",
    re.IGNORECASE,
)
NOW_TIME = re.compile(
    r"(?<![a-z])(?:current|local|server)[ _]time(?![a-z])|\bit is now\b|^\W*time\b", re.IGNORECASE
)
NOW_EPOCH = re.compile(
    r"(?<![a-z])(?:timestamp|epoch|unix|time|now|ts|generated)(?![a-z])", re.IGNORECASE
)

FIXED = re.compile(
    r"\b(?:e\.g|examples?|instance|such as|like|formats?|formatted|pattern|default|const"
    r"|effective|since|until|before|after|from|valid|expires?|version|releases?|released"
    r"|founded|born|cut-?off|deadline|published|enacted|if|when|whether|unless)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z])|\n|\\n")

_MORE = re.compile(r"[\d:.,+Zz-]*(?: ?[AaPp][Mm])?")
"""What may go on after a date or time that was found: seconds, a zone, half of the day."""
_SEEN_BEFORE = 48
"""Characters before a place in which a date may begin that covers it."""

FINDERS: tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...] = (
    (STAMP, None),
    (DATE, NOW),
    (CLOCK, NOW_TIME),
    (EPOCH, NOW_EPOCH),
)
"""What to look for, and the word that must stand beside it."""


def dynamic_timestamps(payload: Payload) -> Iterator[Hit]:
    """Yield the places of dates and times that look generated."""
    for path, text in field_texts(payload):
        end = -1
        for start, stop in sorted(_spans(text)):
            if start < end:
                continue
            end = stop
            yield Hit(
                RULE,
                path,
                start,
                "a date or time that looks generated",
                "move it into the user turn or, if it never changes, add "
                f"{RULE} to spec.lint.ignore",
            )


def dated_within(text: str, start: int, end: int) -> bool:
    """Return whether a date, a time of day or epoch seconds reach into a part of a text."""
    first = max(0, start - _SEEN_BEFORE)
    window = text[first : end + _SEEN_BEFORE]
    return any(
        match.start() < end - first and _end(window, match) > start - first
        for pattern, _ in FINDERS
        for match in pattern.finditer(window)
    )


def _end(text: str, found: re.Match[str]) -> int:
    more = _MORE.match(text, found.end())
    return more.end() if more is not None else found.end()


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for pattern, beside in FINDERS:
        for match in islice(pattern.finditer(text), MAX_CANDIDATES):
            before = _sentence_before(text, match.start())
            if FIXED.search(before):
                continue
            if beside is not None:
                after = _sentence_after(text, match.end())
                if not beside.search(before) and not beside.search(after):
                    continue
            yield match.span()


def _sentence_before(text: str, start: int) -> str:
    window = text[max(0, start - BEFORE) : start]
    ends = [match.end() for match in SENTENCE_END.finditer(window)]
    return window[ends[-1] :] if ends else window


def _sentence_after(text: str, end: int) -> str:
    # A space in front: what follows isn't the start of a line.
    return " x" + SENTENCE_END.split(text[end : end + AFTER], maxsplit=1)[0]
