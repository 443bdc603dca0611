"""Which KV connectors keep copies, and which side of prefill and decode the engine is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from promptprefix_vllm.connectors import Transfer, transfer_of


def connector(name: str, *parts: Any) -> Any:
    made = type(name, (), {})()
    if parts:
        made._connectors = list(parts)
    return made


TIER = connector("OffloadingConnector")
NIXL = connector("NixlConnector")


@pytest.mark.parametrize(
    ("given", "role", "expected"),
    [
        (None, None, Transfer("", "")),
        (TIER, "kv_both", Transfer("OffloadingConnector", "kv_both")),
        (NIXL, "kv_consumer", Transfer("", "kv_consumer")),
        (
            connector("MultiConnector", NIXL, TIER, connector("LMCacheConnectorV1")),
            "kv_producer",
            Transfer("OffloadingConnector+LMCacheConnectorV1", "kv_producer"),
        ),
        (connector("TheirOwn"), "kv_both", Transfer("TheirOwn", "kv_both")),
    ],
)
def test_tiers(given: Any, role: str | None, expected: Transfer) -> None:
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_role=role))
    assert transfer_of(SimpleNamespace(connector=given, vllm_config=config)) == expected


def test_a_scheduler_that_knows_no_connectors() -> None:
    assert transfer_of(SimpleNamespace()) == Transfer()
