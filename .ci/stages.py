"""Runs the stages of ``make test`` in order and prints how long each took.

The last lines are pytest's own summary of the last stage; a failing stage ends the run with its
exit status.
"""

from __future__ import annotations

import subprocess
import sys
import time

STAGES = (
    ("check", ["make", "check"]),
    ("demo", [".venv/bin/python", "-m", "pytest", "e2e/test_demo.py"]),
    ("e2e", [".venv/bin/python", "-m", "pytest", "e2e", "--ignore=e2e/test_demo.py"]),
)


def main() -> int:
    """Run the stages; return the exit status of the first that fails, else 0."""
    times: list[tuple[str, float]] = []
    for name, command in STAGES:
        print(f"==> {name}: {' '.join(command)}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        times.append((name, time.monotonic() - begin))
        print(f"==> {name}: {times[-1][1]:.0f} s, exit status {status}", flush=True)
        if status:
            return status
    print("==> " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
