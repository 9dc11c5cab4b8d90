"""With `rollout.tree.returns=committed`, what a tree commits is rewarded as the same episode without
a tree.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agent_system import BaseOrchestra
from agent_system.testing import ScriptedEngine
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config.reward import PropagationConfig, RewardConfig
from verl.trainer.config.run import TreeConfig

from .test_tied_candidates import MANY, OnlyStepPays
from .test_tree import CALL, TASKS, Adder, InTurn, Speaker, Together

COMMITTED = TreeConfig(k=2, select="first", returns="committed")
REWARDS = {
    "episode": RewardConfig(alpha=0.5),
    "turn": RewardConfig(team_scope="turn"),
    "call": RewardConfig(team_scope="call"),
    "threshold": RewardConfig(
        propagation=PropagationConfig(mode="threshold", theta=0.3, local_range=[0.0, 8.0], min_pass_rate=0.0)
    ),
    "hop_discount": RewardConfig(shaping="hop_discount"),
}


class ScoredAdder(Adder):
    def score(self, agent_id: str, action: str) -> Any:
        return Adder.act(self.fork(), agent_id, action)


@pytest.mark.parametrize("orchestra", [InTurn, Together])
@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("env", [Adder, ScoredAdder])
async def test_what_is_committed_is_rewarded_as_without_a_tree(
    make_collector: Any, scripted: Any, orchestra: type[BaseOrchestra], name: str, env: type[Adder]
) -> None:
    options = {"orchestra": orchestra(), "env": env, "reward": REWARDS[name], "max_steps": 2}
    agents = {agent: Speaker(agent) for agent in ("A", "B")}
    tree = make_collector(
        scripted(["1", "8", "5", "7", "2", "6", "4", "8"]), agents=agents, tree=COMMITTED, **options
    )
    parallel = make_collector(scripted(["1", "5", "2", "4"]), agents=agents, **options)
    grown, played = await tree.collect(TASKS[:1], 1, step=1), await parallel.collect(TASKS[:1], 1, step=1)
    committed = grown.batch.select_idxs(grown.batch.non_tensor_batch["committed"].astype(bool))
    for column in ("reward", "mixed_reward", "team_reward", "local_reward", "step_reward", "anchor"):
        assert (
            committed.non_tensor_batch[column].tolist() == played.batch.non_tensor_batch[column].tolist()
        ), column
    columns = grown.batch.non_tensor_batch
    others = ~columns["committed"].astype(bool)
    assert columns["reward"][others].tolist() == pytest.approx(columns["candidate_reward"][others].tolist())
    assert grown.metrics["tree/signal_rate"] == 1.0, "candidates differ in the rewards of their own forks"


async def test_rewards_of_step_are_no_reason_for_a_warning(
    make_collector: Any, scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agents = {agent: Speaker(agent) for agent in ("A", "B")}
    collector = make_collector(
        scripted(lambda *_: "3"),
        orchestra=InTurn(),
        agents=agents,
        env=OnlyStepPays,
        tree=COMMITTED,
        reward=RewardConfig(),
        max_steps=2,
    )
    with caplog.at_level(logging.WARNING):
        await collector.collect(MANY, 1, step=1)
    assert not caplog.records


async def test_validation_is_rewarded_as_ever(make_collector: Any, scripted: Any) -> None:
    agents = {agent: Speaker(agent) for agent in ("A", "B")}
    collector = make_collector(
        scripted(["1", "5"]), orchestra=InTurn(), agents=agents, env=Adder, tree=COMMITTED, max_steps=1
    )
    (episode,) = (await collector.collect(TASKS[:1], 1, step=1, validate=True)).episodes
    assert [s.rewards.local_reward for s in episode.samples] == [0.5, 2.5]
    assert [s.rewards.team_reward for s in episode.samples] == [episode.team_reward] * 2


class AbortsGreedy(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> list[Generation]:
        replies = await super().generate(request)
        return replies if request.sampling.temperature else [Generation((), (), "abort")]


@pytest.mark.parametrize(
    ("greedy", "baselines"), [("5", [12.5] * 2), ("13", [2.5 * 4.5] * 2), ("aborted", [2.5 * 4.5] * 2)]
)
async def test_a_greedy_reply_to_a_call_is_a_baseline_and_nothing_else(
    make_collector: Any, scripted: Any, tokenizer: Any, greedy: str, baselines: list[float]
) -> None:
    """Where it breaks the world or is aborted, the candidates' mean stands in; A's call has it, B's
    has none.
    """
    engine = (
        AbortsGreedy(tokenizer, ["1", "8", greedy, "7", "2"])
        if greedy == "aborted"
        else scripted(["1", "8", greedy, "7", "2"])
    )
    agents = {agent: Speaker(agent) for agent in ("A", "B")}
    options = {"orchestra": InTurn(), "env": Adder, "reward": CALL, "max_steps": 1, "max_failure_rate": 1.0}
    result = await make_collector(
        engine, agents=agents, tree=TreeConfig(k=2), greedy_baselines=["A"], **options
    ).collect(TASKS[:1], 1, step=1)
    assert [(r.n, r.sampling.temperature) for r in engine.requests] == [(2, 1.0), (1, 0.0), (2, 1.0)]
    columns = result.batch.non_tensor_batch
    assert columns["reward"].tolist() == [2.5, 20.0, 17.5, 5.0]
    assert columns["reward_baselines"].tolist() == [*baselines, *[2.5 * 4.5] * 2]
    (episode,) = result.episodes
    assert [s.action for s in episode.committed] == ["8", "7"] and "A: 8" in episode.committed[
        1
    ].request.prompt_text
    assert [s.rewards.reward for s in episode.samples if s.identity.greedy] == (
        [12.5] if greedy == "5" else []
    )
    assert result.metrics["tree/candidates/mean"] == 2.0 and result.metrics["agent/a/reward/mean"] == 11.25
    assert result.metrics["tree/left_out"] == (1.0 if greedy == "13" else 0.0)
