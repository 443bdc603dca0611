"""What indexes of others got wrong: restarts, unknown parents, gaps, salts, adapters, replicas."""

from __future__ import annotations

from dataclasses import replace

from promptprefix.wire import TenantSalt
from promptprefix_router.precise.block_index import EXPECTED_S

from .precise_stand import HELLO, TEXT, PreciseStand, address, asked, names_of
from .samples import TENANT, endpoint, prefix

HELD, HASHED = "held;match=undeclared", "hashed;match=undeclared"


def stand(*held_by: int, **names: str) -> PreciseStand:
    """Return four pods with feeds; these hold the text."""
    made = PreciseStand()
    for last in (1, 2, 3, 4):
        made.feed(last, names_of(TEXT, **names) if last in held_by else ())
    return made


async def test_an_engine_that_restarts_in_its_pod_keeps_no_stale_blocks() -> None:
    made = stand(3)
    assert await made.ask(asked()) == (address(3), HELD)
    made.feed(3, hello=replace(HELLO, epoch="e2"))
    assert (await made.ask(asked()))[1] == HASHED


async def test_a_pod_that_left_leaves_nothing_to_the_next_one_at_its_address() -> None:
    made = stand(3)
    made.use(*(endpoint(n, blocks_port=1) for n in (1, 2, 4)))
    made.blocks.lose(address(3))
    made.use(*(endpoint(n, blocks_port=1, pod_uid=f"new-{n}") for n in (1, 2, 3, 4)))
    assert (await made.ask(asked()))[1] == HASHED


async def test_a_sidecar_that_restarts_is_no_engine_that_restarts() -> None:
    """Its feed begins anew with the same epoch: until it is whole, what was sent counts."""
    made = stand(3)
    await made.ask(asked())
    made.blocks.lose(address(3))
    made.blocks.begin(address(3), replace(HELLO, complete=False))
    made.blocks.finish(address(3))
    assert await made.ask(asked()) == (address(3), "seen;match=undeclared")


async def test_a_picker_that_starts_late_knows_the_children_too() -> None:
    """The feed begins with a snapshot: no block is unknown for want of its parent's event."""
    made = PreciseStand()
    for last in (1, 2, 3, 4):
        made.feed(last)
    names = names_of(TEXT)
    made.blocks.add(address(2), names[1:])
    assert (await made.ask(asked()))[1] == HASHED
    made.now += EXPECTED_S
    made.blocks.add(address(2), names[:1])
    assert await made.ask(asked()) == (address(2), HELD)


async def test_only_what_begins_a_prompt_counts() -> None:
    """Blocks from the middle, with a gap before them, are no prefix."""
    made = stand()
    names = names_of(TEXT)
    made.blocks.add(address(1), [names[0], *names[2:]])
    made.blocks.add(address(2), names[:2])
    assert await made.ask(asked()) == (address(2), HELD)


async def test_evicted_ends_are_not_held() -> None:
    made = stand(1, 2)
    made.blocks.remove(address(1), names_of(TEXT)[1:])
    assert await made.ask(asked()) == (address(2), HELD)


async def test_a_prompt_without_a_salt_finds_nothing_of_a_salted_one() -> None:
    assert (await stand(3, salt="secret").ask(asked()))[1] == HASHED


async def test_a_salt_that_a_client_writes_leads_nowhere() -> None:
    """The router takes it out: the engine reads none."""
    assert (await stand(3, salt="secret").ask(asked(cache_salt="secret")))[1] == HASHED
    assert await stand(3).ask(asked(cache_salt="secret")) == (address(3), HELD)


async def test_the_salt_of_a_tenant_decides_which_blocks_are_its_own() -> None:
    made = stand(3, salt="of-team-a")
    made.use(
        *(endpoint(n, blocks_port=1) for n in (1, 2, 3, 4)),
        prefixes=(prefix(salt="of-team-a", owner="team-a"),),
        tenants=(TenantSalt(namespace=TENANT, tenant="team-a", salt="of-team-a"),),
    )
    assert await made.ask(replace(asked(), tenant="team-a")) == (address(3), HELD)
    assert (await made.ask(replace(asked(), tenant="team-b")))[1] == HASHED


async def test_an_adapter_is_matched_by_its_name() -> None:
    made = PreciseStand()
    models = ("m", "lora")
    made.use(*(endpoint(n, blocks_port=1, models=models) for n in (1, 2, 3, 4)))
    for last in (1, 2, 3, 4):
        made.feed(last)
    made.blocks.add(address(2), names_of(TEXT, model="lora", adapter=True))
    made.blocks.add(address(4), names_of(TEXT))
    assert await made.ask(asked(model="lora")) == (address(2), HELD)
    assert await made.ask(asked()) == (address(4), HELD)


async def test_engines_of_another_model_are_never_asked_nor_chosen() -> None:
    """One tokenizer is not good for all models."""
    made = PreciseStand()
    made.use(endpoint(1, blocks_port=1), endpoint(2, blocks_port=1, models=("other",)))
    made.feed(1)
    made.feed(2, names_of(TEXT), replace(HELLO, bases=("other",)))
    assert await made.ask(asked()) == (address(1), HASHED)


async def test_a_pod_that_holds_it_and_is_not_ready_is_not_chosen() -> None:
    made = stand(3)
    made.use(*(endpoint(n, blocks_port=1, ready=n != 3) for n in (1, 2, 3, 4)))
    assert (await made.ask(asked()))[1] == HASHED
