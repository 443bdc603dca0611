"""Orders of a person on call: annotations set on resources of a cluster, by way of kubectl.

kubectl has everybody's ways to sign in to a cluster, so it is what speaks to the API server.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.durations import parse_duration
from promptprefix.resource import GROUP, PLURAL
from promptprefix.selector import DNS_NAME

FIELD_MANAGER: Final = "promptprefix-cli"
_OPPOSITE: Final = {WARM_NOW: UNPIN, UNPIN: WARM_NOW}
_NAME = re.compile(DNS_NAME)


class OrderError(ValueError):
    """The order can't be given; the message says why and what to do."""


@dataclass(frozen=True)
class Order:
    """Sets ``annotation`` to ``value``; None takes it away."""

    annotation: str
    value: str | None

    @property
    def patch(self) -> str:
        """The order as a JSON merge patch; an order takes the opposite one away."""
        annotations = {self.annotation: self.value}
        if self.value is not None:
            annotations[_OPPOSITE[self.annotation]] = None
        return json.dumps({"metadata": {"annotations": annotations}})

    @property
    def words(self) -> str:
        """What the order means."""
        done = "held warm" if self.annotation == WARM_NOW else "unpinned"
        if self.value is None:
            return f"no longer {done} by order"
        until = "it is taken back" if self.value == "true" else self.value
        return f"{done} until {until}"


def order_of(annotation: str, lasting: str | None, off: bool, now: datetime) -> Order:
    """Return the order for a duration from ``now`` on, without an end, or to end it.

    Raises `OrderError`.
    """
    if off:
        if lasting is not None:
            raise OrderError("--for and --off exclude each other")
        return Order(annotation, None)
    if lasting is None:
        return Order(annotation, "true")
    try:
        duration = parse_duration(lasting)
        end = (now + duration).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise OrderError(f"--for: {error}") from error
    if duration <= timedelta(0):
        raise OrderError("--for: must be longer than 0s")
    return Order(annotation, end.strftime("%Y-%m-%dT%H:%M:%SZ"))


Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def run_kubectl(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run kubectl. Raises `OrderError` where there is none."""
    program = shutil.which("kubectl")
    if program is None:
        raise OrderError("kubectl is not in the PATH: install it, it speaks to the cluster")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def give(order: Order, names: Sequence[str], options: Sequence[str], run: Run) -> Iterator[str]:
    """Give the order to each resource and yield what was done; ``options`` are kubectl's.

    Raises `OrderError` at the first that refuses, with what kubectl said.
    """
    for name in names:
        if len(name) > 253 or _NAME.fullmatch(name) is None:
            raise OrderError(f"{name!r}: no name of a PromptPrefix")
    for name in names:
        arguments = [
            "patch",
            f"{PLURAL}.{GROUP}",
            name,
            "--type=merge",
            f"--patch={order.patch}",
            f"--field-manager={FIELD_MANAGER}",
            *options,
        ]
        done = run(arguments)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
            raise OrderError(f"{name}: kubectl: {said}")
        yield f"{name}: {order.words}"
