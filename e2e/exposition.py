"""Pages of metrics as Prometheus scrapes them."""

from __future__ import annotations


def total(page: str, name: str, /, **labels: str) -> float:
    """Return the sum of the series of that name and these labels; 0 if there is none."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith((f"{name} ", f"{name}{{")) and all(each in line for each in wanted)
    )
