"""``python -m e2e.simulator --port 8000``: one simulated engine on loopback until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from e2e.simulator.options import Adapter, SimulatorOptions, Timing
from e2e.simulator.publisher import publishing
from e2e.simulator.server import serving
from e2e.simulator.simulated_engine import SimulatedEngine


def arguments() -> argparse.Namespace:
    """Read the command line; names are vLLM's where it has the same option."""
    defaults, timing = SimulatorOptions(), Timing()
    parser = argparse.ArgumentParser(prog="e2e.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", default=defaults.model)
    parser.add_argument("--block-size", type=int, default=defaults.block_size)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=defaults.blocks)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len)
    parser.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=int, default=defaults.max_batched_tokens)
    parser.add_argument("--lora-modules", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--key-file", type=Path, help="key of the pin plugin; without: no plugin")
    parser.add_argument("--pin-budget", type=float, default=defaults.pin_budget)
    parser.add_argument("--prefill-tokens-per-s", type=float, default=timing.prefill_tokens_per_s)
    parser.add_argument("--decode-seconds", type=float, default=timing.decode_seconds)
    parser.add_argument("--speed", type=float, default=timing.speed)
    parser.add_argument("--start-seconds", type=float, default=0.0)
    parser.add_argument("--events-endpoint", default="", help="where KV events are published")
    parser.add_argument("--replay-endpoint", default="")
    parser.add_argument("--topic", default=defaults.topic)
    parser.add_argument("--dev-mode", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def options(given: argparse.Namespace) -> SimulatorOptions:
    """Return the engine that the command line describes."""
    modules = [module.partition("=") for module in given.lora_modules]
    return SimulatorOptions(
        model=given.served_model_name,
        blocks=given.num_gpu_blocks_override,
        block_size=given.block_size,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        max_batched_tokens=given.max_num_batched_tokens,
        key=given.key_file.read_bytes() if given.key_file else b"",
        plugin=given.key_file is not None,
        pin_budget=given.pin_budget,
        dev_mode=given.dev_mode,
        adapters=tuple(
            Adapter(name, path, number) for number, (name, _, path) in enumerate(modules, 1)
        ),
        events=bool(given.events_endpoint),
        topic=given.topic,
        start_seconds=given.start_seconds,
        timing=Timing(
            prefill_tokens_per_s=given.prefill_tokens_per_s,
            decode_seconds=given.decode_seconds,
            speed=given.speed,
        ),
    )


async def run(given: argparse.Namespace) -> None:
    """Serve until cancelled."""
    engine = SimulatedEngine(options(given))
    async with contextlib.AsyncExitStack() as stack:
        if given.events_endpoint:
            publisher = publishing(engine, given.events_endpoint, given.replay_endpoint)
            await stack.enter_async_context(publisher)
        port = await stack.enter_async_context(serving(engine, given.host, given.port))
        print(f"simulated engine on http://{given.host}:{port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(arguments()))
