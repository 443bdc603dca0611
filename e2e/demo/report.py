"""The demo's figures: what each means, the table, and the JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MEANINGS = {
    "prefix_tokens": "tokens of the declared prefix, whole KV blocks",
    "ttft_cold_ms": "first token, prefix not cached (median)",
    "ttft_warm_ms": "first token, prefix warm, through Envoy (median)",
    "warm_over_cold": "warm first token as a share of cold",
    "cached_token_share": "cached tokens of all prompt tokens, routed declared requests",
    "prefill_reduction": "prompt tokens saved, warm-ups paid, against least-request without pins",
    "routed_warm_share": "declared requests that the router sent to a warm pod",
    "pinned_survived": "pinned tokens still cached after noise of twice the cache",
    "unpinned_survived": "same for a prefix that was only used, not pinned",
    "apply_to_warm_s": "kubectl apply started → Warm on both pods",
    "cold_prefill_s": "the slower of two simultaneous prefills of that length",
    "rewarm_s": "edit applied → new version Warm on both pods",
    "restart_rewarm_s": "engine killed → Warm on both pods again",
    "deleted_unpinned": "kubectl delete left nothing pinned",
}


@dataclass
class Report:
    """Collects figures and the seconds of each stage."""

    figures: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            **self.figures,
            "rss_mb": self.rss_mb,
            "versions": self.versions,
            "stage_seconds": self.stages,
            "details": self.details,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    def show(self, console: Console) -> None:
        """Print one table for people."""
        table = Table(title="promptprefix demo", title_justify="left")
        table.add_column("figure")
        table.add_column("value", justify="right")
        table.add_column("meaning")
        for name, meaning in MEANINGS.items():
            if name in self.figures:
                table.add_row(name, _plain(self.figures[name]), meaning)
        for name, megabytes in self.rss_mb.items():
            table.add_row(f"rss {name}", f"{megabytes:.0f} MB", "resident memory at the end")
        table.add_row("total", f"{sum(self.stages.values()):.0f} s", "all stages")
        console.print(table)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
