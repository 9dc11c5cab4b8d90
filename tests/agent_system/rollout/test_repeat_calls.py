"""Episodes that share replies of an agent (`rollout.repeat_calls`): one seed, one row, the mean reward."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_system import Task
from agent_system.reward.repeats import share_rewards
from agent_system.rollout import CollectResult
from agent_system.rollout.batch import build_batch
from agent_system.rollout.metrics import collect_metrics
from agent_system.rollout.shared_replies import SharedReplies
from agent_system.testing import scripted_team
from agent_system.workflows.math import MathEnv
from tests.waiting import settle
from verl.protocol import DataProto
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams
from verl.trainer.config import RewardConfig, RunConfig
from verl.trainer.config.reward import CustomRewardFunctionConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults

FILE = """\
team: 1
agents:
  Planner: {prompt: "Plan: {env_prompt}"}
  Writer: {prompt: "Write: {env_prompt}{team_context}", answer: number}
do: [{call: Planner}, {call: Writer, id: a}]
return: a
"""
TASKS = [Task("t1", "What?", "demo", "7"), Task("t2", "Why?", "demo", "7")]


def by_seed(_: str, request: Any) -> str:
    return f"plan {request.seed % 1_000_000}"


def right_or_wrong(_: str, request: Any) -> str:
    return "7" if request.seed % 3 else "8"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "team.yaml").write_text(FILE)

    async def collect(
        count: int, *, planner: Any = by_seed, writer: Any = right_or_wrong, **more: Any
    ) -> CollectResult:
        validate = more.pop("validate", False)
        settings = {"repeat_calls": {"Planner": count}} if count > 1 else {}
        team = scripted_team(
            "graph",
            {"Planner": planner, "Writer": writer},
            env_name="math",
            options={"file": str(tmp_path / "team.yaml")},
            **settings,
            **more,
        )
        return await team.collect(TASKS, 8, step=1, validate=validate)

    return collect


def plans(result: CollectResult) -> list[list[str]]:
    texts = [e.samples[0].text for e in result.episodes]
    return [texts[:8], texts[8:]]


async def test_every_n_episodes_share_a_reply_and_other_agents_draw_their_own(
    play: Callable[..., Any],
) -> None:
    result = await play(4)
    for group in plans(result):
        assert len(set(group)) == 2 and group[:4] == [group[0]] * 4 and group[4:] == [group[4]] * 4
    assert len({s.request.seed for e in result.episodes for s in e.samples if s.agent_id == "Writer"}) == 16
    alone = await play(1)
    assert all(len(set(group)) == 8 for group in plans(alone))
    assert [group[0] for group in plans(alone)] == [group[0] for group in plans(result)]


async def test_a_shared_reply_is_one_row_with_the_mean_reward(play: Callable[..., Any]) -> None:
    result = await play(4)
    columns = result.batch.non_tensor_batch
    assert Counter(columns["agent_id"]) == {"Planner": 4, "Writer": 16}
    rows = [i for i, agent in enumerate(columns["agent_id"]) if agent == "Planner"]
    team = [e.team_reward for e in result.episodes]
    means = [float(np.mean(team[first : first + 4])) for first in range(0, 16, 4)]
    assert len(set(means)) > 1
    for name in ("reward", "team_reward", "mixed_reward", "step_reward"):
        assert [columns[name][i] for i in rows] == means
    assert [columns["traj_uid"][i][-1] for i in rows] == list("0404")
    shown = [e.to_json()["calls"][0].get("repeated", False) for e in result.episodes]
    assert shown == [False, True, True, True] * 4
    kept = [s for e in result.episodes for s in e.samples if s.identity.repeated]
    assert all(not s.identity.trained and s.rewards.team_reward in (0, 1) for s in kept)


async def test_a_shared_reply_counts_once_in_the_means_of_its_agent(play: Callable[..., Any]) -> None:
    def plan(_: str, request: Any) -> str:
        return "a longer plan" if request.seed % 2 else "plan"

    result = await play(4, planner=plan)
    metrics = result.metrics
    firsts = [e.samples[0] for e in result.episodes[::4]]
    assert metrics["agent/planner/calls"] == 16 and metrics["agent/planner/calls_per_episode"] == 1
    assert metrics["agent/planner/reward/mean"] == pytest.approx(np.mean([s.rewards.reward for s in firsts]))
    assert metrics["agent/planner/reward/std"] == pytest.approx(np.std([s.rewards.reward for s in firsts]))
    lengths = [s.response_tokens for s in firsts]
    assert metrics["agent/planner/response_length/mean"] == pytest.approx(np.mean(lengths))


async def test_collections_that_are_joined_have_the_mean_of_what_arrived_once(tmp_path: Path) -> None:
    """A local reward of the shared reply, which differs between its episodes."""
    (tmp_path / "team.yaml").write_text(FILE)
    kwargs = {"price": 0.01, "agent": "Planner", "free": ["Planner"]}
    priced = CustomRewardFunctionConfig("agent_system.workflows.design.reward:priced", kwargs)
    team = scripted_team(
        "graph",
        {"Planner": by_seed, "Writer": lambda _, request: "8 " * (10 + request.seed % 90) + "7"},
        env_name="math",
        options={"file": str(tmp_path / "team.yaml")},
        repeat_calls={"Planner": 4},
        reward=RewardConfig(custom_reward_function=priced),
    )
    results = [await team.collect([task], 4, step=1, attempt=i) for i, task in enumerate(TASKS)]
    means = [
        -0.01 * float(np.mean([e.samples[1].response_tokens for e in result.episodes])) for result in results
    ]
    joined = team.join(results)
    assert joined.batch is not None
    columns = joined.batch.non_tensor_batch
    rows = [i for i, name in enumerate(columns["agent_id"]) if name == "Planner"]
    assert [columns["local_reward"][i] for i in rows] == pytest.approx(means)


async def test_an_engine_samples_a_shared_reply_once_and_need_not_repeat_it(play: Callable[..., Any]) -> None:
    count = iter(range(100))
    result = await play(4, planner=lambda *_: f"plan {next(count)}")
    assert next(count) == 4
    assert Counter(result.batch.non_tensor_batch["agent_id"]) == {"Planner": 4, "Writer": 16}
    validation = await play(4, planner=lambda *_: f"plan {next(count)}", validate=True)
    assert next(count) == 21 and len({e.samples[0].text for e in validation.episodes}) == 16


async def test_replies_that_differ_are_rows_of_their_own(play: Callable[..., Any]) -> None:
    episodes = (await play(4)).episodes
    fresh = [
        replace(
            e,
            samples=tuple(
                replace(s, request=replace(s.request, prompt_text="", prompt_ids=(i,))).with_identity(
                    repeated=False
                )
                for s in e.samples
            ),
        )
        for i, e in enumerate(episodes)
    ]
    assert share_rewards(fresh, ["Planner"]) == fresh


class Engine:
    """Counts requests; a reply comes when `replied` is set, or is an error."""

    def __init__(self) -> None:
        self.requests = 0
        self.cancelled = 0
        self.replied = asyncio.Event()
        self.error: Exception | None = None

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.requests += 1
        try:
            await self.replied.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [Generation((self.requests,), (0.0,), "stop")]


REQUEST = GenerateRequest((1, 2), SamplingParams(4), seed=3)


async def test_requests_that_are_equal_but_for_their_id_are_sent_once() -> None:
    client = SharedReplies(engine := Engine(), 3)
    asking = [asyncio.create_task(client.generate(replace(REQUEST, request_id=str(i)))) for i in range(3)]
    other = asyncio.create_task(client.generate(replace(REQUEST, seed=4)))
    await settle()
    assert engine.requests == 2
    engine.replied.set()
    first, *others = await asyncio.gather(*asking)
    assert others == [first, first] and (await other)[0] is not first[0]
    await client.generate(REQUEST)
    assert engine.requests == 3


async def test_a_cancelled_episode_leaves_the_reply_to_the_others_and_the_last_one_cancels_it() -> None:
    client = SharedReplies(engine := Engine(), 3)
    first, second = (asyncio.create_task(client.generate(REQUEST)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    assert engine.cancelled == 0 and first.cancelled() and not second.done()
    second.cancel()
    await settle()
    assert engine.cancelled == 1 and second.cancelled()
    engine.replied.set()
    assert (await client.generate(REQUEST))[0].token_ids == (2,)


async def test_an_error_is_that_of_all_who_wait_and_not_of_later_requests() -> None:
    client = SharedReplies(engine := Engine(), 3)
    engine.error = RolloutError("gone")
    asking = [asyncio.create_task(client.generate(REQUEST)) for _ in range(2)]
    engine.replied.set()
    errors = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(error) for error in errors] == ["gone", "gone"]
    engine.error = None
    assert (await client.generate(REQUEST))[0].token_ids == (2,)


async def test_a_failed_episode_is_left_out_of_the_mean_and_another_is_the_first(
    play: Callable[..., Any], monkeypatch: Any
) -> None:
    count = iter(range(100))

    def step(self: MathEnv, action: Any, _step: Any = MathEnv.step) -> Any:
        if next(count) == 0:
            raise RuntimeError("the first one")
        return _step(self, action)

    monkeypatch.setattr(MathEnv, "step", step)
    result = await play(4, writer=lambda *_: "7", max_failure_rate=0.5)
    (failed,) = [number for number, e in enumerate(result.episodes) if e.failed]
    columns = result.batch.non_tensor_batch
    assert Counter(columns["agent_id"]) == {"Planner": 4, "Writer": 15}
    assert set(columns["reward"]) == {1.0}
    assert columns["traj_uid"][0] == result.episodes[1 if failed == 0 else 0].traj_uid


async def test_a_validation_draws_every_reply(play: Callable[..., Any]) -> None:
    result = await play(4, validate=True)
    assert all(len(set(group)) == 8 for group in plans(result))
    assert not any(s.identity.repeated for e in result.episodes for s in e.samples)


async def test_rewards_of_tokens_and_terms_are_averaged_too(play: Callable[..., Any]) -> None:
    episodes = (await play(2)).episodes[:2]
    plan = episodes[0].samples[0].with_identity(repeated=False, trained=True)
    tokens = len(plan.generation.token_ids)
    pair = [
        replace(
            e,
            samples=(
                replace(
                    plan.with_rewards(token_rewards=(value,) * tokens),
                    reward_terms={"x": value, name: 1.0},
                ),
            ),
        )
        for e, value, name in zip(episodes, (1.0, 3.0), "yz", strict=True)
    ]
    first, second = (e.samples[0] for e in share_rewards(pair, ["Planner"]))
    assert first.rewards.token_rewards == (2.0,) * tokens and first.reward_terms == {"x": 2.0}
    assert second.rewards.token_rewards == (3.0,) * tokens and second.identity.repeated
    metrics = collect_metrics(share_rewards(pair, ["Planner"]), ["Planner"])
    assert metrics["agent/planner/reward/x/mean"] == 2.0 and metrics["agent/planner/reward/x/std"] == 0.0
    batch = build_batch(share_rewards(pair, ["Planner"]), token_rewards=True)
    assert isinstance(batch, DataProto) and len(batch) == 1
    assert json.loads(json.dumps(second.to_json()))["repeated"] is True


def resolved(tiny_model_dir: Path, changes: dict[str, Any]) -> Any:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.data.train_files = "tasks.jsonl"
    config.env.rollout.n = 8
    for key, value in changes.items():
        *sections, name = key.split(".")
        setattr(reduce(getattr, sections, config), name, value)
    resolve_defaults(config)
    return resolve(config)


REPEAT = "rollout.repeat_calls"


def test_agents_are_named_by_name_or_slug(tiny_model_dir: Path) -> None:
    plan = resolved(tiny_model_dir, {REPEAT: {"solver_agent": 4, "Verifier Agent": 2}})
    assert plan.repeats == {"Solver Agent": 4, "Verifier Agent": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({REPEAT: {"Solver Agent": 3}}, "repeat_calls.solver_agent=3 does not divide env.rollout.n=8"),
        ({REPEAT: {"Solver Agent": 16}}, "does not divide env.rollout.n=8"),
        ({REPEAT: {"Solver Agent": 1}}, "repeat_calls"),
        ({REPEAT: {"Slover Agent": 2}}, "no agent 'Slover Agent'; did you mean 'Solver Agent'?"),
        ({REPEAT: {"Solver Agent": 2, "solver_agent": 4}}, "names agent 'Solver Agent' twice"),
        ({REPEAT: {"Solver Agent": 2}, "rollout.sampling": "tree",
            "algorithm.group_by": ["traj_uid", "agent_id", "turn", "call"], "reward.team_scope": "call"},
            "rollout.sampling=parallel"),
        ({REPEAT: {"Solver Agent": 2}, "async_training.mode": "one_step_off",
            "algorithm.rollout_correction.bypass_mode": True}, "async_training.mode=sync, not one_step_off"),
        ({REPEAT: {"Solver Agent": 2}, "algorithm.group_by": ["uid"]}, "the advantage of one of them"),
        ({REPEAT: {"Solver Agent": 2}, "algorithm.adv_estimator": "gdpo",
            "algorithm.gdpo_reward_keys": ["tokens"], "reward.custom_reward_function.path": "r.py"},
            "names 'tokens', a term of one episode"),
    ],
)  # fmt: skip
def test_what_does_not_work_with_it_is_one_line(
    tiny_model_dir: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        resolved(tiny_model_dir, changes)
    assert words in str(error.value) and "\n" not in str(error.value)
