"""Who is told which key of the feeds of block names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from promptprefix.block_stream import KEY_BYTES, namespace_key
from promptprefix.placement import Plan
from promptprefix.wire import (
    EngineState,
    RouteEndpoint,
    RouteTable,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_operator.block_keys import NO_KEYS, BlockKeyring
from promptprefix_operator.publication import Publication
from tests.unit.operator.control_setup import KEYRING, Setup, serve

NAMESPACES = ("ml", "chat")
QUESTION = SyncRequest(state=SidecarState(engine=EngineState(healthy=True, address="a", port=1)))


def planned(blocks_port: int) -> Plan:
    places = tuple(
        RouteEndpoint(
            pod_uid=each, pod="p", namespace=each, address="10.0.0.1", port=1, models=("m",),
            ready=True, blocks_port=blocks_port,
        )
        for each in NAMESPACES
    )  # fmt: skip
    return Plan({"u0": ()}, (), places, {}, frozenset())


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async for made in serve(0.02):
        yield made


def test_each_namespace_has_its_own() -> None:
    assert KEYRING.of("ml") == namespace_key(bytes(KEY_BYTES), "ml").hex()
    assert KEYRING.of("ml") != KEYRING.of("chat")
    assert [each.namespace for each in KEYRING.routed(["ml", "chat", "ml"])] == ["chat", "ml"]


@pytest.mark.parametrize("keys", [NO_KEYS, BlockKeyring(b"short")])
def test_without_a_seed_there_is_none(keys: BlockKeyring) -> None:
    assert keys.of("ml") == ""
    assert keys.routed(["ml"]) == ()
    publication = Publication(1, keys)
    publication.publish(planned(8091))
    assert publication.answer_to("u0", "ml").blocks_key == ""
    assert publication.routes.blocks_keys == ()


def test_a_keyring_does_not_show_its_seed() -> None:
    seed = b"a-seed-that-nobody-may-read-here"
    assert "nobody" not in repr(BlockKeyring(seed))


async def test_a_pod_gets_the_key_of_its_own_namespace_alone(setup: Setup) -> None:
    setup.publication.publish(planned(0))
    body = QUESTION.model_dump_json()
    await setup.ask("POST", "/v1/sidecar/sync", "pod", body)  # is news for the next plan
    setup.publication.publish(planned(0))
    status, text = await setup.ask("POST", "/v1/sidecar/sync", "pod", body)
    assert status == 200
    answer = SyncResponse.model_validate_json(text)
    assert (answer.blocks_key, answer.pod_uid) == (KEYRING.of("ml"), "u0")
    assert KEYRING.of("chat") not in text


async def test_a_router_gets_the_keys_of_the_pods_that_it_may_send_to(setup: Setup) -> None:
    setup.publication.publish(planned(8091))
    routers = {"router": NAMESPACES, "ml-router": ("ml",), "chat-router": ("chat",)}
    for router, namespaces in routers.items():
        _, text = await setup.ask("GET", "/v1/routes", router)
        keys = RouteTable.model_validate_json(text).blocks_keys
        assert {each.namespace: each.key for each in keys} == {
            each: KEYRING.of(each) for each in namespaces
        }
        assert all((KEYRING.of(each) in text) is (each in namespaces) for each in NAMESPACES)


def test_no_key_is_told_where_no_pod_has_a_feed() -> None:
    publication = Publication(1, KEYRING)
    publication.publish(planned(0))
    assert publication.routes.blocks_keys == ()
    publication.publish(planned(8091))
    assert len(publication.routes.blocks_keys) == len(NAMESPACES)
