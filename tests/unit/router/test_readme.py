"""The README's table of settings: all of them, with the defaults that they have."""

from __future__ import annotations

import re
from pathlib import Path

from promptprefix_router.settings import RouterSettings

README = Path(__file__).parents[3] / "router" / "README.md"
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
