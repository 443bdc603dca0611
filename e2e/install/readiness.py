"""Follows the readiness of pods without asking again: no change between two looks is missed."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from e2e.install.programs import Kubectl

_LINE = (
    "jsonpath={.metadata.name}{' '}{.metadata.deletionTimestamp}{' '}"
    "{.status.conditions[?(@.type=='Ready')].status}{'\\n'}"
)


@dataclass(frozen=True)
class Sight:
    """One state of one pod."""

    pod: str
    ready: bool


class ReadinessHistory:
    """Every state that the pods of a selector took, in order, while the block runs."""

    def __init__(self, kubectl: Kubectl, namespace: str, selector: str) -> None:
        self.sights: list[Sight] = []
        self._started = threading.Event()
        self._process = subprocess.Popen(
            [
                *kubectl.command,
                "get",
                "pods",
                "-n",
                namespace,
                "-l",
                selector,
                "--watch",
                "-o",
                _LINE,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        if not self._started.wait(timeout=30):
            raise AssertionError("kubectl get --watch says nothing")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()

    def was_unready(self, pod: str) -> bool:
        """Whether the pod was seen not Ready."""
        return any(sight.pod == pod and not sight.ready for sight in tuple(self.sights))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.rstrip("\n").split(" ")
            if len(words) == 3:
                self.sights.append(Sight(words[0], words[2] == "True"))
                self._started.set()
