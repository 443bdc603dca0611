"""Messages of the control API survive JSON, and bear what a newer peer adds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from promptprefix.resource import Pinning
from promptprefix.wire import (
    BlocksKey,
    EngineState,
    MatchReport,
    Phase,
    Placement,
    PlacementState,
    Revision,
    RouteEndpoint,
    RoutePrefix,
    RouteTable,
    Salt,
    SidecarState,
    SyncRequest,
    SyncResponse,
    Wire,
)

ENGINE = EngineState(
    healthy=True,
    address="10.0.0.1",
    port=8000,
    models=("m",),
    epoch="e1",
    block_size=32,
    capabilities=("hard-pins",),
)
HTTPS = ENGINE.model_copy(update={"tls": True})
STATE = PlacementState(
    id="a", phase=Phase.WARM, pinned=Pinning.HARD, tokens=64, last_hit=1.5, warm_seconds=0.25
)
PLACEMENT = Placement(
    id="a",
    namespace="ml",
    name="p",
    model="m",
    fingerprint="pp1:sha256:00",
    content_digest="00",
    pinning=Pinning.SOFT,
    priority=-1,
)
PREFIX = RoutePrefix(name="p", tenant="ml", model="m", fingerprint="f", token_digests=("d",))
ENDPOINT = RouteEndpoint(
    pod_uid="u",
    pod="v",
    namespace="ml",
    address="10.0.0.1",
    port=8000,
    models=("m",),
    ready=True,
    warm=("d",),
)
REVISION = Revision(term=1, number=2)

MESSAGES: tuple[Wire, ...] = (
    SyncRequest(state=SidecarState(engine=ENGINE)),
    SyncRequest(revision=REVISION, state=SidecarState(engine=ENGINE, placements=(STATE,))),
    SyncRequest(state=SidecarState(engine=ENGINE), sent=1_796_000_000.5),
    SyncRequest(state=SidecarState(engine=HTTPS, ready=True, failed_open=True)),
    SyncResponse(revision=REVISION, placements=()),
    SyncResponse(revision=REVISION, placements=(PLACEMENT,)),
    RouteTable(revision=REVISION, prefixes=(PREFIX,), endpoints=(ENDPOINT,)),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Wire) -> None:
    assert type(message).model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_a_newer_peer_adds_is_ignored(message: Wire) -> None:
    body = {**json.loads(message.model_dump_json()), "news": [1]}
    assert type(message).model_validate_json(json.dumps(body)) == message


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"state": {}}', '{"state": {"engine": {"healthy": true}}}'],
)
def test_malformed_questions_are_refused(body: str) -> None:
    with pytest.raises(ValidationError):
        SyncRequest.model_validate_json(body)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-1", "1e999"])
@pytest.mark.parametrize("field", ["last_hit", "warm_seconds"])
def test_a_time_is_a_number_from_zero_on(field: str, number: str) -> None:
    state = f'{{"id": "u-1", "phase": "Warm", "{field}": '
    assert PlacementState.model_validate_json(f"{state}1e18}}")
    with pytest.raises(ValidationError):
        PlacementState.model_validate_json(f"{state}{number}}}")
    for sent, at in ((number, "1"), ("1", number)):
        match = f'{{"id": "u-1", "count": 1, "at": {at}}}'
        with pytest.raises(ValidationError):
            MatchReport.model_validate_json(
                f'{{"tenant": "ml", "sent": {sent}, "matches": [{match}]}}'
            )


@pytest.mark.parametrize("number", [-1, 2**53 + 1])
@pytest.mark.parametrize("field", ["block_size", "blocks_total", "budget_blocks", "waiting"])
def test_a_number_of_the_engine_is_a_count(field: str, number: int) -> None:
    raw = json.loads(ENGINE.model_dump_json()) | {field: number}
    with pytest.raises(ValidationError):
        EngineState.model_validate(raw)


@pytest.mark.parametrize("number", [-1, 2**53 + 1])
@pytest.mark.parametrize("field", ["tokens", "resident_tokens", "pinned_tokens"])
def test_a_number_of_a_placement_is_a_count(field: str, number: int) -> None:
    raw = json.loads(STATE.model_dump_json()) | {field: number}
    with pytest.raises(ValidationError):
        PlacementState.model_validate(raw)


def test_a_sidecar_that_says_nothing_of_readiness_or_tls_is_understood() -> None:
    engine = '{"healthy": true, "address": "10.0.0.1", "port": 8000}'
    state = SyncRequest.model_validate_json(f'{{"state": {{"engine": {engine}}}}}').state
    assert (state.ready, state.failed_open, state.engine.tls) == (False, False, False)


@given(st.builds(PlacementState))
def test_any_state_of_a_placement_survives(state: PlacementState) -> None:
    assert PlacementState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (Salt, '{"salt": ["a-secret"]}'),
        (RoutePrefix, '{"name": 1, "salt": "a-secret"}'),
        (RouteTable, '{"prefixes": [{"salt": ["a-secret"]}]}'),
    ],
)
def test_an_error_does_not_quote_a_salt(message: type[Wire], raw: str) -> None:
    with pytest.raises(ValidationError) as refused:
        message.model_validate_json(raw)
    assert "a-secret" not in str(refused.value)


def test_a_key_of_feeds_is_a_secret_and_goes_to_its_own_namespace() -> None:
    keys = tuple(BlocksKey(namespace=name, key=f"secret-{name}") for name in ("ml", "other"))
    table = RouteTable(revision=REVISION, prefixes=(), endpoints=(), blocks_keys=keys)
    answer = SyncResponse(revision=REVISION, placements=(), blocks_key="secret-ml")
    assert "secret" not in f"{table!r} {table} {answer!r} {keys}"
    assert table.of("ml").blocks_keys == keys[:1]
    assert RouteTable.model_validate_json(table.model_dump_json()) == table
    assert SyncResponse.model_validate_json(answer.model_dump_json()) == answer
    old = answer.model_dump(mode="json")
    del old["blocks_key"]
    assert SyncResponse.model_validate(old).blocks_key == ""


def test_a_salt_is_not_shown() -> None:
    prefix = PREFIX.model_copy(update={"salt": "a-secret"})
    table = RouteTable(revision=Revision(term=1, number=1), prefixes=(prefix,), endpoints=())
    assert "a-secret" not in f"{Salt(salt='a-secret')!r} {table!r} {prefix}"
