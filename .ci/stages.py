"""Runs the stages of ``make test`` in order and prints how long each took.

A failing stage ends the run with its exit status. The last stage's time stands in pytest's own
summary, which ends the output.
"""

from __future__ import annotations

import subprocess
import sys
import time

PYTEST = [".venv/bin/python", "-m", "pytest"]

STAGES = (
    ("check", ["make", "check"]),
    ("demo", [*PYTEST, "e2e/test_demo.py"]),
    ("install", [*PYTEST, "e2e/install"]),
    ("e2e", [*PYTEST, "e2e", "--ignore=e2e/test_demo.py", "--ignore=e2e/install"]),
)


def main() -> int:
    """Run the stages; return the exit status of the first that fails, else 0."""
    done: list[str] = []
    for name, command in STAGES:
        earlier = f" ({', '.join(done)})" if done else ""
        print(f"==> {name}{earlier}: {' '.join(command)}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        if status:
            return status
        done.append(f"{name} {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
