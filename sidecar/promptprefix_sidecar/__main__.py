"""``python -m promptprefix_sidecar [run | init-key]``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

import structlog
from pydantic import ValidationError

from promptprefix_sidecar.key_file import ensure_key
from promptprefix_sidecar.settings import ENV_PREFIX, KeySettings, Settings

log = structlog.get_logger()

BAD_SETTINGS = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="promptprefix_sidecar", description=__doc__)
    parser.add_argument(
        "command",
        nargs="?",
        choices=("run", "init-key"),
        default="run",
        help="run: the sidecar (default). init-key: write the pod's key unless it is there.",
    )
    command = parser.parse_args(arguments).command
    set_up_logs("info")
    try:
        return init_key(KeySettings()) if command == "init-key" else run(read_settings())
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = ENV_PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
            log.error("bad setting", variable=name, problem=problem["msg"])
        return BAD_SETTINGS


def read_settings() -> Settings:
    """Return the settings of the environment; raise `ValidationError`."""
    return Settings()


def init_key(settings: KeySettings) -> int:
    """Write the key that engine and sidecar of this pod share."""
    try:
        written = ensure_key(settings.key_file)
    except OSError as error:
        log.error("key not written", path=str(settings.key_file), problem=error.strerror)
        return 1
    log.info("key written" if written else "key kept", path=str(settings.key_file))
    return 0


def run(settings: Settings) -> int:
    """Run the sidecar until SIGTERM or SIGINT."""
    from promptprefix_sidecar.sidecar import run_sidecar  # the init container does without it

    set_up_logs(settings.log_level)

    async def until_signal() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run_sidecar(settings, stop)

    asyncio.run(until_signal())
    return 0


def set_up_logs(level: str) -> None:
    """Write one JSON object a line to standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
