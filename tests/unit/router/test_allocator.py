"""What is large leaves the process when it is freed, whatever came before it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from promptprefix_router.allocator import LARGE_BYTES

SCRIPT = """
import resource
from promptprefix_router.allocator import LARGE_BYTES, give_back_large

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

give_back_large()
# Once glibc has freed something large it takes the like from its heap.
large = bytearray(b"x") * (4 * LARGE_BYTES)
del large
table = bytearray(b"x") * (2 * LARGE_BYTES)
behind_it = bytearray(b"x") * (LARGE_BYTES // 4)
before = resident()
del table
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such knob")
def test_what_is_large_goes_back_to_the_system() -> None:
    command = (sys.executable, "-c", SCRIPT)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1.9 * LARGE_BYTES
