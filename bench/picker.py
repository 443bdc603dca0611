"""How long the picker thinks: ``python bench/picker.py``. Numbers are of one core, in memory.

Bodies carry about 11 kB of tools and a system text of 10 kB; "memo" repeats one prefix, "no memo"
never sees the same one twice. None is declared: each goes where the history says. "largest" is the
costliest body that Envoy shows the picker.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable

from promptprefix.wire import Revision, RouteEndpoint, RoutePrefix, RouteTable
from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import HttpRequest
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

LIMIT = 1_048_576
PATH = "/v1/chat/completions"
ENDPOINTS = 16


def tool(number: int) -> dict[str, object]:
    """Return one tool of about 350 bytes."""
    properties = {
        f"argument_{i}": {"type": "string", "description": "What this argument means."}
        for i in range(4)
    }
    function = {"name": f"tool_{number}", "parameters": {"properties": properties}}
    return {"type": "function", "function": function}


def body(seed: int, turns: int = 4, tools: int = 32) -> bytes:
    """Return a chat completion whose prefix depends on ``seed``."""
    messages = [{"role": "system", "content": f"{seed} " + "You are the triage desk. " * 400}]
    messages += [{"role": "user", "content": f"turn {i} " + "x" * 200} for i in range(turns)]
    content = {"model": "m", "messages": messages, "tools": [tool(i) for i in range(tools)]}
    return json.dumps(content).encode()


def picker(count: int = ENDPOINTS) -> Picker:
    """Return a picker over a pool of so many endpoints."""
    memo = FingerprintMemo(4096)
    made = Picker(
        Matcher(memo),
        Chooser(LoadLedger(), PromptHistory(262_144), CostKnobs(), time.monotonic),
        MatchTally(time.time),
        RouterMetrics(memo, time.monotonic),
        time.perf_counter,
    )
    endpoints = tuple(
        RouteEndpoint(
            pod_uid=str(i), pod=str(i), namespace="ml", models=("m",), ready=True,
            address=f"10.0.{i // 250}.{i % 250}", port=8000, warm=("d",) if i < 2 else (),
        )
        for i in range(1, count + 1)
    )  # fmt: skip
    prefix = RoutePrefix(name="p", tenant="ml", model="m", fingerprint="x", token_digests=("d",))
    table = RouteTable(revision=Revision(term=1, number=1), prefixes=(prefix,), endpoints=endpoints)
    made.use(Routes.from_table(table, "ml"))
    return made


def measure(name: str, bodies: Iterable[bytes], answer: Callable[[HttpRequest], object]) -> None:
    """Print median and worst time of a decision, in microseconds."""
    times = []
    for content in bodies:
        request = HttpRequest("POST", PATH, {}, content)
        started = time.perf_counter()
        answer(request)
        times.append((time.perf_counter() - started) * 1e6)
    sys.stdout.write(
        f"{name:22} {len(content) // 1024:5d} kB  median {statistics.median(times):9.0f} us"
        f"  worst {max(times):9.0f} us\n"
    )


def main() -> None:
    """Measure every case."""
    answer = ExtAuthz(picker(), LIMIT).answer
    same = body(0)
    measure("memo", [same] * 2000, answer)
    for count in (5, 500):
        measure(f"memo, {count} pods", [same] * 2000, ExtAuthz(picker(count), LIMIT).answer)
    measure("no memo", (body(i) for i in range(1, 501)), answer)
    measure("memo, long talk", [body(0, turns=400)] * 500, answer)
    measure("other model", [same.replace(b'"m"', b'"n"', 1)] * 2000, answer)
    measure("escaped letters", [same[:-1] + b',"x":"\\u0041"}'] * 500, answer)
    measure("header is a command", [same[:-1] + b',"x":"promptprefix"}'] * 500, answer)
    large = body(0, tools=3000)[: LIMIT - 2]
    measure("cut at the limit", [large.ljust(LIMIT)] * 20, answer)
    measure("largest", (body(i, tools=2200) for i in range(1000, 1010)), answer)


main()
