"""Logs: one JSON object a line on standard error, from structlog and the standard library alike."""

from __future__ import annotations

import logging
import sys

import structlog
from aiohttp.http_exceptions import HttpProcessingError


def configure_logs(level: str) -> None:
    """Send all logs through one formatter.

    kopf's and asyncio's debug lines quote whole objects, prompts included: they stay off at any
    level.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    handler.addFilter(_is_no_peers_text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("kopf", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.INFO, root.level))
    for name in ("kopf.objects", "aiohttp.access"):  # a line for every reading and request
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _is_no_peers_text(record: logging.LogRecord) -> bool:
    """Whether a record is none of a request that is no HTTP.

    aiohttp quotes such a request, tokens included, and anybody can send one; the peer is told.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
