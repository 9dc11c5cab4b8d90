"""The simulator of asynchronous training: what a schedule must take is known where nothing is random."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import pytest

from benchmarks.asynchronous.simulator import Costs, Devices, Engine, Group, Schedule, run_steps
from benchmarks.asynchronous.virtual_time import simulate

# 4 groups of 2 episodes of 2 calls of 10 tokens on 8 slots: 2 x 10 decode steps of 8 rows, and 16 calls.
COSTS = Costs(decode_s=0.2, row_s=0.01, call_s=0.05, update_s=1.0, update_token_s=0.01, log_prob_token_s=0.005, sync_s=0.25, rest_s=0.5,
              slots=8, prompt_tokens=20)  # fmt: skip
TASKS, TOKENS = 4, 16 * (10 + 20)
EQUAL: Group = [[(10, 0.0)] * 2] * 2
GEN_S = 20 * (0.2 + 8 * 0.01) + 16 * 0.05
UPDATE_S, LOG_PROB_S = 0.5 + 1.0 + 0.01 * TOKENS, 0.005 * TOKENS
FULLY_ASYNC = Schedule("fully_async", staleness=2, trigger=1, off_policy=4)


def slow_tools(seed: int = 0) -> Iterator[Group]:
    """Groups whose calls have random lengths and waits."""
    draw = random.Random(seed)
    while True:
        yield [[(draw.randint(1, 60), draw.lognormvariate(0, 1.2)) for _ in range(2)] for _ in range(2)]


def step_s(costs: Costs, schedule: Schedule, groups: Iterator[Group]) -> float:
    return run_steps(costs, schedule, groups, TASKS, 12).step_s(4, 8)


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    assert step_s(COSTS, Schedule(), repeat(EQUAL)) == pytest.approx(GEN_S + UPDATE_S + 0.25)


def test_a_decode_step_reads_every_row_up_to_the_block_of_the_longest() -> None:
    """Prompts of 20 tokens: replies leave the first block of 64 after 44 of their 100 tokens."""
    more = step_s(replace(COSTS, cache_s=0.001), Schedule(), repeat([[(100, 0.0)]] * 2)) - step_s(
        COSTS, Schedule(), repeat([[(100, 0.0)]] * 2)
    )
    assert more == pytest.approx(8 * 0.001 * (44 * 64 + 56 * 128), rel=1e-3)


def test_with_devices_of_its_own_a_step_off_hides_the_shorter_part() -> None:
    """The longer part and the weight sync are left; old log-probs are new."""
    expected = max(GEN_S, UPDATE_S + LOG_PROB_S) + 0.25
    assert step_s(COSTS, Schedule("one_step_off"), repeat(EQUAL)) == pytest.approx(expected)


def test_engines_and_updates_that_share_processors_slow_each_other_down() -> None:
    """At half speed each, as long as both work, they take together as long as one after the other."""
    shared = replace(COSTS, engine_speed=0.5, update_speed=0.5)
    expected = GEN_S + UPDATE_S + LOG_PROB_S + 0.25
    assert step_s(shared, Schedule("one_step_off"), repeat(EQUAL)) == pytest.approx(expected)


def test_fully_async_with_staleness_0_takes_exactly_as_long_as_sync() -> None:
    costs = replace(COSTS, log_prob_token_s=0.0)
    never_stale = replace(FULLY_ASYNC, staleness=0)
    assert run_steps(costs, never_stale, slow_tools(), TASKS, 6) == run_steps(
        costs, Schedule(), slow_tools(), TASKS, 6
    )


@pytest.mark.timeout(60)
def test_replies_that_need_less_time_than_the_clock_can_tell_end() -> None:
    costs = replace(COSTS, decode_s=1e-9, row_s=0.0)
    assert (
        step_s(
            costs,
            FULLY_ASYNC,
            (
                [[(10**6, 1000.0 + wait) for _, wait in episode] for episode in group]
                for group in slow_tools()
            ),
        )
        > 0
    )


@pytest.mark.parametrize(("staleness", "trigger", "bound"), [(1, 1, 1), (2, 1, 4), (3, 2, 7)])
def test_no_group_is_older_than_the_bound_and_waits_are_hidden(
    staleness: int, trigger: int, bound: int
) -> None:
    report = run_steps(COSTS, Schedule("fully_async", staleness, trigger, bound), slow_tools(), TASKS, 12)
    assert 0 < max(report.staleness) <= bound
    assert report.step_s(4, 8) < step_s(COSTS, Schedule(), slow_tools())


def test_a_group_that_could_not_be_trained_in_time_is_waited_for() -> None:
    """One of the first groups takes 1,000 s: step 6, the last that may train it, does not begin before."""
    first: Group = [[(10, 1000.0)]]
    report = run_steps(COSTS, FULLY_ASYNC, iter([first, *[EQUAL] * 200]), TASKS, 8)
    assert report.updated[3] < 1000 < report.updated[5]


def test_more_groups_in_flight_than_the_bound_allows_are_refused() -> None:
    with pytest.raises(ValueError, match="8 steps of groups in flight, but each must be trained within 5"):
        Schedule("fully_async", staleness=3, trigger=2, off_policy=4)


def test_a_simulation_in_which_nothing_can_happen_says_so() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every coroutine of the simulation waits for another one"):
        simulate(stuck())


def test_replies_beyond_the_slots_wait() -> None:
    """24 equal replies on 8 slots take three times as long as 8."""

    async def seconds(replies: int) -> float:
        costs = replace(COSTS, call_s=0.0)
        engine = Engine(costs, Devices(costs))
        await asyncio.gather(*[engine.generate(10) for _ in range(replies)])
        return asyncio.get_running_loop().time()

    assert simulate(seconds(24)) == pytest.approx(3 * simulate(seconds(8)))
