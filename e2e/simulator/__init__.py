"""A simulated vLLM engine: HTTP, metrics, KV events and a block-accurate prefix cache, no model."""

from e2e.simulator.options import Adapter, Fault, SimulatorOptions, Timing
from e2e.simulator.simulated_engine import SimulatedEngine
from e2e.simulator.transport import SimulatorTransport, simulator_client

__all__ = [
    "Adapter",
    "Fault",
    "SimulatedEngine",
    "SimulatorOptions",
    "SimulatorTransport",
    "Timing",
    "simulator_client",
]
