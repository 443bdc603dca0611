"""Asks a picker's decision door at a rate, as Envoy would, and tells how long answers took.

``python -m bench.questions --door SOCKET --prompts FILE --rate 500 --seconds 10``. Questions come
at random times (Poisson), each when it is due whether or not earlier ones are answered; with
``--rate 0`` all connections ask without a pause. Prints a line of JSON. Times are from when a
question was due.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.prompts import NUMBER

CONNECTIONS = 16
_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Questions:
    """Bodies with a number in the user's turn, or in the system text so that no two are alike."""

    path: Path
    fresh: bool
    first: int

    def __iter__(self) -> Iterator[bytes]:
        """Give questions without an end."""
        bodies = [
            line.partition("\t")[2].encode() for line in self.path.read_text("utf-8").splitlines()
        ]
        mark = NUMBER.encode()
        if self.fresh:
            bodies = [each.replace(b"You are desk", b"%s You are" % mark, 1) for each in bodies]
        parts = [each.partition(mark)[::2] for each in bodies]
        number = self.first
        while True:
            for head, tail in parts:
                number += 1
                body = b"%s%012d%s" % (head, number, tail)
                yield (
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                    b"x-envoy-internal: true\r\nx-envoy-expected-rq-timeout-ms: 200\r\n"
                    b"content-length: %d\r\n\r\n" % len(body)
                ) + body


@dataclass
class Asker:
    """Asks over a few connections, each of which has one question at a time."""

    door: str
    rate: float
    """Questions a second; 0: as fast as they are answered."""
    times: list[float] = field(default_factory=list)
    wrong: int = 0
    _due: dict[socket.socket, float] = field(default_factory=dict)

    def ask(self, questions: Iterator[bytes], count: int, seconds: float) -> None:
        """Ask so many questions, but begin none after so many seconds."""
        idle = [self._connect() for _ in range(CONNECTIONS)]
        chance = random.Random(1)  # noqa: S311 - the same times in every run
        begun = time.perf_counter()
        due = begun
        while count > 0 or self._due:
            now = time.perf_counter()
            if now - begun > seconds:
                count = 0
            while count > 0 and idle and due <= now:
                connection = idle.pop()
                connection.sendall(next(questions))
                self._due[connection] = due if self.rate else now
                due += chance.expovariate(self.rate) if self.rate else 0.0
                count -= 1
            pause = max(0.0, due - time.perf_counter()) if count > 0 and idle else 1.0
            for connection in select.select(list(self._due), (), (), pause)[0]:
                idle.append(connection)
                self._take(connection)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(10.0)
        connection.connect(self.door)
        return connection

    def _take(self, connection: socket.socket) -> None:
        answer = connection.recv(65_536)
        self.times.append(time.perf_counter() - self._due.pop(connection))
        # A permit has no body, so its head is all of it.
        self.wrong += not (answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(_END))


def percentile_ms(times: list[float], share: float) -> float:
    """Return the time that so many of the answers did not exceed, in ms; NaN without any."""
    if not times:
        return math.nan
    return sorted(times)[max(0, math.ceil(len(times) * share) - 1)] * 1000


def main() -> None:
    """Ask, and print what was seen."""
    parser = argparse.ArgumentParser(prog="bench.questions", description=__doc__)
    parser.add_argument("--door", required=True, help="the picker's Unix socket")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0, help="where the numbers begin")
    parser.add_argument("--fresh", action="store_true", help="each has a system text of its own")
    options = parser.parse_args()
    asker = Asker(options.door, options.rate)
    begun = time.perf_counter()
    questions = iter(Questions(options.prompts, options.fresh, options.first))
    asker.ask(questions, options.count, options.seconds)
    took = time.perf_counter() - begun
    found = {
        "questions": len(asker.times),
        "per_second": round(len(asker.times) / took, 1),
        "p50_ms": round(percentile_ms(asker.times, 0.5), 3),
        "p99_ms": round(percentile_ms(asker.times, 0.99), 3),
        "wrong": asker.wrong,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
