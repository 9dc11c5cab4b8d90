"""Who mattered in worlds whose effects are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent_system import BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, Task
from agent_system.projection import Projection
from agent_system.replay.arms import AuditSize, expected_replies, spread
from agent_system.replay.effects import effects_table, estimator_rows, ranks, reliability
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from tests.agent_system.replay.conftest import Audited, Dice
from verl.protocol.generate import SamplingParams

P = 0.3  # that an agent says 1
FIRST, SECOND = "First", "Second"
TASKS = [Task(f"t{i}", f"task {i}", "demo", "1") for i in range(60)]
Run = Callable[..., Any]


class Sayer(BaseAgent):
    prompt = "Say: {env_prompt}\n{team_context}"
    projection = staticmethod(lambda text: Projection(text.strip(), True, {}))


class InTurn(BaseOrchestra):
    agents = (FIRST, SECOND)

    async def run(self, turn: Any) -> str:
        first = await turn.act(FIRST)
        second = await turn.act(SECOND)
        return first.action + second.action


class FirstCounts(BaseEnv):
    """Pays what the first agent said."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        return Outcome(team=float(action[0]), done=True)


class BothCount(FirstCounts):
    """Pays if both agents say 1."""

    def step(self, action: str) -> Outcome:
        return Outcome(team=float(action == "11"), done=True)


def coin(prompt: str, random: Any) -> str:
    return str(int(random.random() < P))


def team_of(tokenizer: Any, env: type[BaseEnv], **settings: Any) -> Collector:
    engine = Dice(tokenizer, coin)
    sampling = SamplingParams(20)
    bindings = {
        name: AgentBinding(name, name, name, engine, tokenizer, sampling, sampling, 500)
        for name in InTurn.agents
    }
    agents = {name: Sayer(name) for name in InTurn.agents}
    return Collector(InTurn(), agents, EnvFactory(env), bindings, CollectorSettings(**settings))


def table(audit: Audited) -> dict[str, dict[str, Any]]:
    rewards = [e.team_reward for e in audit.episodes]
    rows = effects_table(audit.measured, len(rewards), float(np.var(rewards)), 0)
    return {row["agent"]: row for row in rows if row["turn"] is None}


async def test_only_the_agent_that_counts_has_an_effect(audited: Run, tokenizer: Any) -> None:
    audit = await audited(team_of(tokenizer, FirstCounts), TASKS, 4, AuditSize(480, 4, 3))
    rows = table(audit)
    truth = math.sqrt(P * (1 - P))
    assert rows[FIRST]["effect"] == pytest.approx(truth, abs=0.03)
    assert rows[FIRST]["low"] <= truth <= rows[FIRST]["high"]
    assert rows[FIRST]["share"] == pytest.approx(1.0, abs=0.15)
    assert rows[SECOND]["effect"] == rows[SECOND]["high"] == rows[SECOND]["share"] == 0.0
    # of five coins that are equal
    equal = P**5 + (1 - P) ** 5
    assert rows[FIRST]["no_other_action"] == pytest.approx(equal, abs=0.06)
    assert not audit.causes and len(audit.outcomes) == len(audit.decisions) == 480


async def test_effects_of_a_sequence_make_up_the_variance(audited: Run, tokenizer: Any) -> None:
    """First: sd of p x coin. Second: it matters only where the first said 1."""
    audit = await audited(team_of(tokenizer, BothCount), TASKS, 4, AuditSize(480, 4, 5))
    rows = table(audit)
    assert rows[FIRST]["effect"] == pytest.approx(math.sqrt(P * P * P * (1 - P)), abs=0.025)
    assert rows[SECOND]["effect"] == pytest.approx(math.sqrt(P * P * (1 - P)), abs=0.04)
    assert rows[FIRST]["share"] + rows[SECOND]["share"] == pytest.approx(1.0, abs=0.2)


class TwoTurns(FirstCounts):
    """Pays half of what the first agent said in each of two turns."""

    def reset(self, task: Task) -> Observation:
        self.turn = 0
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        self.turn += 1
        return Outcome(team=float(action[0]) / 2, done=self.turn == 2)


async def test_a_turn_of_which_nothing_was_drawn_has_its_share(audited: Run, tokenizer: Any) -> None:
    audit = await audited(team_of(tokenizer, TwoTurns, max_steps=2), TASKS, 2, AuditSize(480, 3, 2))
    of_one = [o for o in audit.outcomes if o.decision.row.identity.turn == 1]
    assert 0 < len(of_one) < len(audit.outcomes)
    whole = table(audit)[FIRST]
    half = table(replace(audit, outcomes=of_one))[FIRST]
    assert half["share"] == pytest.approx(whole["share"], abs=0.15)
    assert half["share_low"] <= half["share"] <= half["share_high"]


async def test_a_reply_after_which_nothing_is_sampled_is_played_once_per_arm(
    audited: Run, tokenizer: Any
) -> None:
    team = team_of(tokenizer, FirstCounts)
    size = AuditSize(1000, 4, 3)
    audit = await audited(team, TASKS[:2], 2, size)
    assert sum(outcome.replies for outcome in audit.outcomes) == expected_replies(audit.decisions, size)
    by_agent = {o.decision.row.agent_id: o.replies for o in audit.outcomes}
    assert by_agent == {FIRST: 4 + 5 * 3, SECOND: 4}


async def test_advantages_that_know_what_mattered_agree_and_noise_does_not(
    audited: Run, tokenizer: Any
) -> None:
    audit = await audited(team_of(tokenizer, FirstCounts), TASKS, 4, AuditSize(240, 4, 2))
    keys = [outcome.decision.key for outcome in audit.outcomes]
    rewards = {e.traj_uid: e.team_reward for e in audit.episodes}
    agent_of = {outcome.decision.key: outcome.decision.row.agent_id for outcome in audit.outcomes}
    noise = np.random.default_rng(3).normal(size=len(keys))
    advantages = {
        "reward": {key: rewards[key[0]] for key in keys},
        "noise": dict(zip(keys, noise, strict=True)),
        "nothing": dict.fromkeys(keys, 0.0),
        # as of an estimator without a baseline for each agent
        "lifted": {key: rewards[key[0]] + 10 * (agent_of[key] == SECOND) for key in keys},
    }
    rows = estimator_rows(audit.measured, advantages, dict.fromkeys(advantages, 7), "noise", 0)
    by_name = {(row["name"], row["agent"]): row for row in rows}
    good, bad, none, lifted = (by_name[name, FIRST] for name in advantages)
    assert lifted["spearman"] == good["spearman"]
    assert by_name["lifted", None] == by_name["reward", None] | {"name": "lifted", "used": False} | {
        "zero_advantages": by_name["lifted", None]["zero_advantages"]
    }
    assert by_name["noise", None]["shuffled_low"] < -0.05 and by_name["noise", None]["shuffled_high"] > 0.05
    assert good["verdict"] == "agrees" and good["spearman"] > 0.8 > good["shuffled_high"]
    assert bad["verdict"] == "does not" and bad["shuffled_low"] < bad["spearman"] < bad["shuffled_high"]
    assert none["verdict"] == "does not" and none["spearman"] is None and none["zero_advantages"] == 1.0
    assert [row["used"] for row in rows if row["agent"] is None] == [False, True, False, False]
    # the second agent's replies are worth nothing: there is nothing to agree with
    assert by_name["reward", SECOND]["verdict"] == "inconclusive"
    assert by_name["reward", SECOND]["reliability"] == 0.0
    assert reliability(audit.measured, audit.measured.places(FIRST)) == pytest.approx(0.8, abs=0.1)


async def test_the_same_seed_gives_the_same_audit(audited: Run, tokenizer: Any) -> None:
    audits = [
        await audited(team_of(tokenizer, BothCount), TASKS[:6], 2, AuditSize(20, 3, 2, seed))
        for seed in (1, 1, 2)
    ]
    rewards = [[(o.decision.key, o.rewards) for o in audit.outcomes] for audit in audits]
    assert rewards[0] == rewards[1] != rewards[2]


async def test_decisions_are_spread_over_agents_and_turns(audited: Run, tokenizer: Any) -> None:
    audit = await audited(team_of(tokenizer, FirstCounts), TASKS[:8], 4, AuditSize(1))
    sample = spread(audit.decisions, 11, 0)
    agents = [decision.row.agent_id for decision in sample]
    assert len({decision.key for decision in sample}) == 11
    assert sorted((agents.count(FIRST), agents.count(SECOND))) == [5, 6]


def test_equal_values_share_their_mean_rank() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
