"""The pin plugin in the engine: what it holds, tells, gives up and drops."""

from __future__ import annotations

import pytest

from e2e.engine.client import Json
from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.contract.subject import ADAPTER
from e2e.engine.server import BLOCK_SIZE, BLOCKS
from e2e.engine.token_prompts import tokens

pytestmark = pytest.mark.timeout(300)

PREFIX = tokens(1, 20 * BLOCK_SIZE + 1)
BUDGET = (BLOCKS - 1) // 2


def user(seed: int) -> list[int]:
    return [*PREFIX[:-1], *tokens(seed, 40)]


def press(client: ContractClient) -> None:
    """Send other traffic of more than the size of the cache."""
    for seed in range(50, 54):
        client.complete(tokens(seed, 50 * BLOCK_SIZE))


def test_a_pin_is_held_and_told_in_numbers(client: ContractClient) -> None:
    answer = client.command("pin", "a", PREFIX, priority=7)
    assert (answer["ok"], answer["reason"]) == (True, "")
    assert (answer["block_size"], answer["blocks_total"]) == (BLOCK_SIZE, BLOCKS - 1)
    assert (answer["blocks_pinned"], answer["budget_blocks"]) == (20, BUDGET)
    (pin,) = answer["pins"]
    assert (pin["id"], pin["state"], pin["priority"]) == ("a", "pinned", 7)
    assert pin["tokens"] == pin["resident_tokens"] == pin["pinned_tokens"] == 20 * BLOCK_SIZE
    press(client)
    assert client.cached_tokens(user(2)) == 20 * BLOCK_SIZE
    (pin,) = client.command("report")["pins"]
    assert (pin["hits"], pin["matches"]) == (1, 1)


def test_unpin_watches_and_matches_count_without_a_hit(client: ContractClient) -> None:
    prefix = tokens(31, 20 * BLOCK_SIZE + 1)
    client.command("pin", "watched", prefix)
    client.command("unpin", "watched")
    press(client)
    assert client.cached_tokens([*prefix[:-1], *tokens(2, 40)]) == 0
    report = client.command("report")
    assert report["pins"] == []
    (watched,) = [each for each in report["watched"] if each["id"] == "watched"]
    assert (watched["matches"], watched["tokens"]) == (1, 20 * BLOCK_SIZE)
    assert report["released"][-1]["reason"] == "Unpinned"


def test_evict_drops_what_no_other_pin_holds(client: ContractClient) -> None:
    longer = [*PREFIX[:-1], *tokens(3, 4 * BLOCK_SIZE + 1)]
    client.command("pin", "short", PREFIX)
    client.command("pin", "long", longer)
    assert client.command("evict", "long")["ok"]
    assert client.cached_tokens(longer) == 20 * BLOCK_SIZE
    assert client.command("evict", "short")["blocks_pinned"] == 0
    assert client.cached_tokens(PREFIX) == 0
    assert client.command("report")["released"][-1]["reason"] == "Evicted"


def test_warm_computes_and_pins_nothing(client: ContractClient) -> None:
    answer = client.command("warm", "", PREFIX)
    assert (answer["ok"], answer["blocks_pinned"], answer["pins"]) == (True, 0, [])
    assert client.cached_tokens(user(2)) == 20 * BLOCK_SIZE


def test_renew_sets_lease_and_priority(client: ContractClient) -> None:
    client.command("pin", "a", PREFIX, lease=60)
    (pin,) = client.command("renew", "a", lease=600, priority=3)["pins"]
    assert pin["priority"] == 3
    assert 500 < pin["lease_left_s"] <= 600
    assert client.command("renew", "unknown")["reason"] == "UnknownPin"


def test_a_lease_runs_out(client: ContractClient) -> None:
    client.command("pin", "brief", PREFIX, lease=1)
    client.eventually(lambda: client.command("report")["pins"] == [])
    assert client.command("report")["released"][-1]["reason"] == "LeaseExpired"


def test_the_budget_counts_shared_blocks_once(client: ContractClient) -> None:
    assert client.command("pin", "a", PREFIX)["blocks_pinned"] == 20
    longer = [*PREFIX[:-1], *tokens(4, 40 * BLOCK_SIZE + 1)]
    assert client.command("pin", "b", longer)["blocks_pinned"] == 60
    refused = client.command("pin", "c", tokens(5, 10 * BLOCK_SIZE + 1))
    assert (refused["ok"], refused["reason"]) == (False, "BudgetExceeded")


def test_a_larger_prompt_opens_the_valve(client: ContractClient) -> None:
    client.command("pin", "low", tokens(6, 40 * BLOCK_SIZE + 1), priority=1)
    client.command("pin", "high", tokens(7, 20 * BLOCK_SIZE + 1), priority=2)
    client.complete(tokens(8, 95 * BLOCK_SIZE))
    report = client.command("report")
    assert [pin["id"] for pin in report["pins"]] == ["high"]
    assert report["released"][-1]["reason"] == "PressureValve"


def test_a_reset_releases_pins_and_begins_a_pin_epoch(client: ContractClient) -> None:
    before = client.command("pin", "a", PREFIX)
    assert client.post("/reset_prefix_cache") == {"success": True}
    after = client.command("report")
    assert (after["pins"], after["epoch"]) == ([], before["epoch"])
    assert after["pin_epoch"] == before["pin_epoch"] + 1
    assert client.cached_tokens(PREFIX) == 0


def test_pins_of_salts_and_adapters_are_their_own(client: ContractClient) -> None:
    command = client.sign("pin", "salted", 20 * BLOCK_SIZE, PREFIX)
    done = client.complete(PREFIX, vllm_xargs={"promptprefix": command}, cache_salt="s" * 16)
    assert done["kv_transfer_params"]["promptprefix"]["ok"]
    command = client.sign("pin", "styled", 20 * BLOCK_SIZE, PREFIX)
    done = client.complete(PREFIX, vllm_xargs={"promptprefix": command}, model=ADAPTER)
    assert done["kv_transfer_params"]["promptprefix"]["blocks_pinned"] == 40
    press(client)
    assert client.cached_tokens(user(2)) == 0
    kinds: list[Json] = [{"cache_salt": "s" * 16}, {"model": ADAPTER}]
    for more in kinds:
        use = client.complete(user(3), **more)["usage"]
        assert use["prompt_tokens_details"]["cached_tokens"] == 20 * BLOCK_SIZE


def test_commands_that_are_not_ours_do_nothing(client: ContractClient) -> None:
    genuine = client.sign("pin", "a", 20 * BLOCK_SIZE, PREFIX)
    assert client.deliver(genuine, tokens(9, 700))["reason"] == "BadMac"
    assert client.deliver("{}", PREFIX)["reason"] == "Malformed"
    assert client.deliver(genuine, PREFIX)["ok"]
    assert client.deliver(genuine, PREFIX)["reason"] == "Replayed"


def test_pins_are_not_load(client: ContractClient) -> None:
    client.command("pin", "a", PREFIX)
    usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="demo"}'
    client.eventually(lambda: client.metrics()[usage] < 1e-9)
