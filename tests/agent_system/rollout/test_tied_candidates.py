"""Candidates that all earn the same are counted, and an environment that cannot tell an agent's candidates
apart is named once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from agent_system import Outcome, Task
from agent_system.rollout.tied_candidates import ENOUGH_CALLS
from verl.trainer.config.run import TreeConfig

from .test_tree import CALL, Adder, InTurn, Speaker

# two turns each: as many calls of an agent as it takes
MANY = [Task(str(i), "go", "worlds") for i in range(ENOUGH_CALLS // 2)]


class OnlyStepPays(Adder):
    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(info=super().act(agent_id, action).info)


class OnlyAIsPaid(Adder):
    def act(self, agent_id: str, action: str) -> Outcome:
        outcome = super().act(agent_id, action)
        return outcome if agent_id == "A" else Outcome(info=outcome.info)


def of_ties(caplog: Any) -> list[str]:
    """The warnings about tied calls; in these environments `step` gives rewards too, which has its own
    warning.
    """
    return [message for record in caplog.records if "got the same reward" in (message := record.getMessage())]


@pytest.fixture
def collector_of(make_collector: Any, scripted: Any) -> Callable[..., Any]:
    def make(env: type[Adder], script: Any = None, **options: Any) -> Any:
        turn = itertools.count()
        agents = {name: Speaker(name) for name in ("A", "B")}
        options = {"tree": TreeConfig(2), "reward": CALL, "max_steps": 2} | options
        return make_collector(
            scripted(script or (lambda *_: str(next(turn) % 8 + 1))),
            orchestra=InTurn(),
            agents=agents,
            env=env,
            **options,
        )

    return make


async def test_a_world_in_which_only_step_pays_is_named_once_for_each_agent(collector_of, caplog) -> None:
    collector = collector_of(OnlyStepPays)
    first = await collector.collect(MANY, 1, step=1)
    assert [first.metrics[f"agent/{a}/tied_calls"] for a in "ab"] == [1.0, 1.0]
    assert first.metrics["tree/signal_rate"] == 0.0
    warnings = of_ties(caplog)
    (step,) = {record.getMessage() for record in caplog.records} - {*warnings}
    assert (
        "step() of OnlyStepPays gave a reward in 50 of 50 turns; these rewards are in the episode's metrics, "
        "but no candidate" in step
    )
    assert len(warnings) == 2
    for agent, warning in zip("AB", warnings, strict=True):
        assert (
            f"in 50 of the first 50 calls of {agent} with different candidates, all candidates got the same "
            "reward" in warning
        )
        assert "OnlyStepPays" in warning and "score()" in warning
    await collector.collect(MANY, 1, step=2)
    assert len(caplog.records) == 3


async def test_a_step_that_pays_beside_act_is_named_unless_a_score_promises_it(collector_of, caplog) -> None:
    class StepPaysToo(Adder):
        def step(self, action: str) -> Outcome:
            return Outcome(1.0, done=True)

    class Promised(StepPaysToo):
        def score(self, agent_id: str, action: str) -> Outcome:
            return Outcome(0.5)

    await collector_of(Promised).collect(MANY, 1, step=1)
    assert not caplog.records
    collector = collector_of(StepPaysToo)
    for step in (1, 2):
        await collector.collect(MANY, 1, step=step)
    (record,) = caplog.records
    assert "step() of StepPaysToo gave a reward in 25 of 25 turns" in record.getMessage()


async def test_only_the_agent_whose_candidates_tie_is_named(collector_of, caplog) -> None:
    result = await collector_of(OnlyAIsPaid).collect(MANY, 1, step=1)
    assert [result.metrics[f"agent/{a}/tied_calls"] for a in "ab"] == [0.0, 1.0]
    (warning,) = of_ties(caplog)
    assert "calls of B" in warning


async def test_what_was_seen_adds_up_over_collections(collector_of, caplog) -> None:
    collector = collector_of(OnlyStepPays)
    await collector.collect(MANY[1:], 1, step=1)
    assert not of_ties(caplog)
    await collector.collect(MANY[:1], 1, step=2)
    assert len(of_ties(caplog)) == 2


async def test_equal_actions_and_ties_after_a_good_beginning_are_no_fault_of_the_world(
    collector_of, caplog
) -> None:
    result = await collector_of(Adder, lambda *_: "3").collect(MANY, 2, step=1)
    assert result.metrics["agent/a/tied_calls"] == 1.0
    late = collector_of(OnlyStepPays)
    late.env = type(late.env)(Adder)
    await late.collect(MANY, 1, step=1)
    late.env = type(late.env)(OnlyStepPays)
    await late.collect(MANY * 2, 1, step=2)
    assert not of_ties(caplog)


@pytest.mark.parametrize("kind", ["validate", "greedy"])
async def test_without_a_tree_nothing_is_counted(collector_of, caplog, kind: str) -> None:
    result = await collector_of(OnlyStepPays).collect(MANY, 1, step=1, **{kind: True})
    assert "agent/a/tied_calls" not in result.metrics
    assert not caplog.records


async def test_a_long_run_keeps_the_first_calls_only(collector_of) -> None:
    collector = collector_of(OnlyAIsPaid)
    for step in range(1, 5):
        await collector.collect(MANY, 1, step=step)
    assert {agent: len(seen) for agent, seen in collector._tied_candidates._ties.items()} == {
        "A": ENOUGH_CALLS,
        "B": ENOUGH_CALLS,
    }
