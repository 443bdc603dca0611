"""Process 1 of the node's namespaces: when it ends, the kernel ends everything inside them.

It reads standard input and ends with it, so that the cluster ends with the program that started
it, however that ends. The line "keep" makes it stay.
"""

import signal
import sys

# Ignoring SIGCHLD lets the kernel reap the orphans that process 1 inherits.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
for line in sys.stdin:
    if line == "keep\n":
        while True:
            signal.pause()
