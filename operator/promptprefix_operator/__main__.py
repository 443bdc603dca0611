"""Entry: ``python -m promptprefix_operator``."""

from __future__ import annotations

import asyncio
import signal
import sys

from pydantic import ValidationError

from promptprefix_operator.api_server import load_configuration
from promptprefix_operator.logs import configure_logs
from promptprefix_operator.manifests import explain
from promptprefix_operator.service import Operator
from promptprefix_operator.settings import Settings


async def _run(settings: Settings) -> None:
    operator = Operator(settings, await load_configuration())
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, operator.stop.set)
    await operator.run()


def main() -> int:
    """Run until a signal; return the exit status."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.stderr.write(f"settings (environment variables PROMPTPREFIX_…): {explain(error, '')}\n")
        return 2
    configure_logs(settings.log_level)
    asyncio.run(_run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
