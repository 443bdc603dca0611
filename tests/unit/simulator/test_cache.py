"""The simulated block pool keeps vLLM's rules, whatever is asked of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from e2e.simulator.engine_core import EngineCore
from e2e.simulator.options import SimulatorOptions, Timing
from e2e.simulator.sim_request import RequestStatus, SamplingParams, SimRequest

SIZE = 4
OPTIONS = SimulatorOptions(
    blocks=17, block_size=SIZE, max_model_len=48, max_num_seqs=3, max_batched_tokens=8, plugin=False
)

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def request(number: int, prompt: list[int], max_tokens: int = 1) -> SimRequest:
    return SimRequest(str(number), prompt, SamplingParams(max_tokens=max_tokens), SIZE)


def step(core: EngineCore) -> None:
    core.complete(core.schedule(), 0.0)


def check(core: EngineCore) -> None:
    """Free blocks are exactly those that nobody holds, and each hash leads to its block."""
    pool = core.scheduler.kv_cache_manager.block_pool
    held = [block for block in pool.blocks if block.ref_cnt > 0]
    assert pool.get_num_free_blocks() == len(pool.blocks) - 1 - len(held)
    for block in pool.blocks:
        if block.block_hash is not None:
            assert pool.get_cached_block(block.block_hash, [0]) is not None


@given(st.lists(st.tuples(prompts, st.integers(1, 6)), min_size=1, max_size=12), st.data())
def test_everything_ends_and_nothing_leaks(
    asked: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    core = EngineCore(OPTIONS, 0.0)
    requests = [request(number, *each) for number, each in enumerate(asked)]
    for each in requests:
        core.add(each)
        if data.draw(st.booleans()):
            step(core)
            check(core)
        if data.draw(st.integers(0, 9)) == 0:
            core.abort(each.request_id)
    for _ in range(2000):
        if not core.has_work():
            break
        step(core)
        check(core)
    assert all(each.is_finished for each in requests)
    assert core.scheduler.kv_cache_manager.usage == 0.0
    for each in requests:
        if each.status is not RequestStatus.FINISHED_ABORTED:
            assert len(each.output_token_ids) == each.sampling_params.max_tokens


@given(prompts)
def test_a_prompt_is_found_again_but_for_its_last_token(prompt: list[int]) -> None:
    core = EngineCore(OPTIONS, 0.0)
    for number in range(2):
        last = request(number, prompt)
        core.add(last)
        while core.has_work():
            step(core)
    assert last.num_cached_tokens == (len(prompt) - 1) // SIZE * SIZE


def test_the_budget_of_a_step_is_shared() -> None:
    core = EngineCore(OPTIONS, 0.0)
    long, short = request(0, [1] * 20), request(1, [2] * 3)
    core.add(long)
    core.add(short)
    counts = []
    while core.has_work():
        output = core.schedule()
        counts.append(dict(output.num_scheduled_tokens))
        core.complete(output, 0.0)
    assert counts == [{"0": 8}, {"0": 8}, {"0": 4, "1": 3}]


def test_the_time_of_a_step() -> None:
    timing = Timing(prefill_tokens_per_s=100, decode_seconds=0.5, step_seconds=0.1, speed=2)
    assert timing.seconds(50, 0) == 0.3
    assert timing.seconds(50, 3) == 0.55
    assert Timing().seconds(10_000, 100) == 0.0
