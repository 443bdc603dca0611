"""What the story measured, for people: times are no assertions."""

from __future__ import annotations

import json
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "build" / "install-report.json"


def record(**figures: float) -> None:
    """Add figures to the report and print them."""
    REPORT.parent.mkdir(exist_ok=True)
    before = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.write_text(json.dumps({**before, **figures}, indent=1) + "\n")
    print(", ".join(f"{name} {value:.1f}" for name, value in figures.items()), flush=True)
