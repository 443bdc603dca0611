"""The README names every setting with its default, every metric and word, and every package."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.gateway.gateway_metrics import GatewayMetrics
from promptprefix_router.matching.matcher import MatchKind
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.precise.pod_blocks import FeedState
from promptprefix_router.precise.precise_metrics import PreciseMetrics
from promptprefix_router.precise.token_request import Fallback
from promptprefix_router.rewriting.respelling import RewriteResult
from promptprefix_router.settings import RouterSettings

README = Path(__file__).parents[3] / "router" / "README.md"
PRECISE = README.parents[1] / "docs" / "precise-mode.md"
ROW = re.compile(r"^\| (`[A-Z_, `]+`) \| ([^|]*) \|", re.MULTILINE)


def documented() -> dict[str, str]:
    """Return defaults by the name of their setting; a row may have several."""
    found = {}
    text = README.read_text()
    table = text[text.index("Settings are environment variables") : text.index("## Metrics")]
    for names, defaults in ROW.findall(table):
        fields = [name.lower() for name in re.findall(r"[A-Z_]+", names)]
        found.update(zip(fields, defaults.replace("`", "").split(", "), strict=True))
    return found


def test_every_setting_is_there_with_its_default() -> None:
    told = documented()
    assert told.keys() == RouterSettings.model_fields.keys()
    for name, field in RouterSettings.model_fields.items():
        default = field.get_default()
        if not told[name].startswith("required"):
            assert told[name] == (f"{default:g}" if isinstance(default, float) else str(default))


def metrics() -> list[str]:
    """Return the names of all metrics, without what they have in common."""
    registry = RouterMetrics(FingerprintMemo(1), time.monotonic).registry
    GatewayMetrics(registry, lambda: 0, lambda: 0)
    PreciseMetrics(registry, lambda: dict.fromkeys(FeedState, 0), lambda: 0, lambda: 0, lambda: 0)
    families = [each for each in registry.collect() if each.name.startswith("promptprefix_")]
    return [
        each.name.removeprefix("promptprefix_router_") + "_total" * (each.type == "counter")
        for each in families
    ]


@pytest.mark.parametrize("word", [*metrics(), *Outcome, *MatchKind, *RewriteResult])
def test_every_metric_and_word_is_told(word: str) -> None:
    text = README.read_text()
    told = text[text.index("## Metrics") : text.index("## Cost")]
    assert re.search(rf"`{word}[`{{]", told)


@pytest.mark.parametrize("reason", Fallback)
def test_every_fallback_of_the_precise_mode_is_told(reason: str) -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", PRECISE.read_text(), re.MULTILINE)
    assert f"`{reason}`" in ", ".join(rows).split(", ")


def test_every_package_is_told() -> None:
    text = README.read_text()
    told = text[text.index("## Where is what") :]
    folder = README.parent / "promptprefix_router"
    places = {each.parent.name for each in folder.glob("*/__init__.py")}
    places |= {each.stem for each in folder.glob("[a-z]*.py")}
    assert set(re.findall(r"`(\w+)`", told)) >= places
