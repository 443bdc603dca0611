"""Entry: ``python -m promptprefix_operator``.

Exit status: 0 after a signal or a lost lead, 2 for bad settings, 3 for a CRD that is too old.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from promptprefix_operator.api_server import load_configuration
from promptprefix_operator.crd_check import CrdTooOldError
from promptprefix_operator.injection.webhook import InjectionMetrics, injection_application
from promptprefix_operator.logs import configure_logs
from promptprefix_operator.manifests import explain
from promptprefix_operator.service import MakeWebhook, Operator
from promptprefix_operator.settings import Settings

log = structlog.get_logger(__name__)


def _webhook(settings: Settings) -> MakeWebhook | None:
    """Return how to build the webhook, if pods are sent to one."""
    if not settings.webhook_configuration:
        return None

    def make(registry: CollectorRegistry) -> web.Application:
        return injection_application(settings.injection, InjectionMetrics(registry))

    return make


async def _run(settings: Settings) -> None:
    operator = Operator(settings, await load_configuration(), webhook=_webhook(settings))
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, operator.stop.set)
    await operator.run()


def main() -> int:
    """Run until a signal or the end of the lead; return the exit status."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.stderr.write(f"settings (environment variables PROMPTPREFIX_…): {explain(error, '')}\n")
        return 2
    configure_logs(settings.log_level)
    try:
        asyncio.run(_run(settings))
    except CrdTooOldError as error:
        log.error("not started", error=str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
