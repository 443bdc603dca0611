"""Workers as processes of their own, and the parent that runs them."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from asyncio.subprocess import Process

import structlog

from promptprefix_router.doors.http_door import open_door
from promptprefix_router.http_connection import Answer
from promptprefix_router.settings import RouterSettings
from promptprefix_router.workers.supervisor import StartError, Supervisor
from promptprefix_router.workers.worker_link import WorkerLink

NOT_STARTED = 1
"""Exit status when a worker does not start."""


class SpawnedWorker:
    """A process of this program, told its number and its end of a pair of sockets."""

    def __init__(self, process: Process, link: WorkerLink) -> None:
        self._process = process
        self._link = link

    @classmethod
    async def start(cls, number: int) -> SpawnedWorker:
        """Start the worker with that number. Raises `OSError`."""
        own, other = socket.socketpair()
        with other:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "promptprefix_router", "worker"),
                *("--number", str(number), "--descriptor", str(other.fileno())),
                pass_fds=(other.fileno(),),
            )
        own.setblocking(False)
        return cls(process, await WorkerLink.over(own))

    async def wait(self) -> int:
        """Return the exit status when it has ended."""
        status = await self._process.wait()
        self._link.close()
        return status

    def terminate(self) -> None:
        """Tell it to end, if it has not."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it, if it has not."""
        if self._process.returncode is None:
            self._process.kill()

    async def ask(self, path: str) -> Answer:
        """Return its answer to a GET. Raises `NoAnswerError`."""
        return await self._link.ask(path)


async def supervise(settings: RouterSettings, stop: asyncio.Event) -> int:
    """Run as many workers as ``settings`` say until ``stop``; return the exit status.

    Raises `OSError` if the port for metrics can't be used.
    """
    supervisor = Supervisor(settings.workers, SpawnedWorker.start, time.monotonic)
    exposition = await open_door(
        supervisor.answer, settings.metrics_host, settings.metrics_port, public=True
    )
    try:
        await supervisor.run(stop)
    except StartError as error:
        structlog.get_logger("workers").error("not started", cause=str(error))
        return NOT_STARTED
    finally:
        exposition.close()
    return 0
