"""Collecting: what is in a batch, and that neither timing nor failures change it."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
import torch

from agent_system import AgentSystemError, BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.rollout import CollectorSettings, TooManyFailuresError
from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutError
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

from .conftest import OneTurn, Pair


class Remembers(BaseAgent):
    prompt = "[{memory}]"


class Both(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        first = await turn.act("Solver")
        await turn.act("Verifier")
        return first.action


def noisy_script(prompt: str, request: Any) -> str:
    """A reply that depends on the request's seed, so that a wrong seed shows."""
    if "Check:" in prompt:
        return f"<verify>{'approve' if request.seed % 2 else 'reject'}</verify>"
    return f"thinking {'x' * (request.seed % 7)} \\boxed{{{request.seed % 10}}}"


@pytest.mark.parametrize("name", ["max_concurrent_episodes", "env_threads"])
def test_no_episodes_at_all_in_flight_is_refused_instead_of_waiting_for_ever(name: str) -> None:
    with pytest.raises(AgentSystemError, match=f"{name} must be 1 or more"):
        CollectorSettings(**{name: 0})


@pytest.mark.parametrize("tree", [None, TreeConfig(k=2)])
def test_an_orchestra_sees_team_and_world_before_anything_is_played(make_collector, scripted, tree) -> None:
    seen = []

    class Watches(Pair):
        def check(self, agents: Any, make_env: Any, *, forks: bool) -> None:
            seen.append((tuple(agents), type(make_env(3)), make_env(3).seed, forks))

    class Forks(OneTurn):
        def fork(self) -> Forks:
            return Forks(self.config, seed=self.seed)

        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome()

    make_collector(
        scripted(), orchestra=Watches(), env=Forks, tree=tree, reward=RewardConfig(team_scope="call")
    )
    assert seen == [(("Solver", "Verifier"), Forks, 3, tree is not None)]


async def test_batch_holds_one_row_per_call_padded_to_the_longest(
    make_collector, scripted, tasks, tokenizer
) -> None:
    result = await make_collector(scripted(noisy_script)).collect(tasks, 2, step=3)
    data = result.batch
    rows = [s for e in result.episodes for s in e.samples]
    assert len(data) == len(rows)
    assert len(repr(result)) < 200  # asyncio asks for it; not all texts of all episodes
    width_p, width_r = data.batch["prompts"].shape[1], data.batch["responses"].shape[1]
    assert width_p == max(len(s.request.prompt_ids) for s in rows)
    assert width_r == max(len(s.generation.token_ids) for s in rows)
    for i, s in enumerate(rows):
        p, r = len(s.request.prompt_ids), len(s.generation.token_ids)
        assert data.batch["prompts"][i].tolist() == [tokenizer.pad_token_id] * (width_p - p) + list(
            s.request.prompt_ids
        )
        assert data.batch["responses"][i].tolist() == list(s.generation.token_ids) + [
            tokenizer.pad_token_id
        ] * (width_r - r)
        assert data.batch["response_mask"][i].tolist() == [1] * r + [0] * (width_r - r)
        assert data.batch["attention_mask"][i].tolist() == [0] * (width_p - p) + [1] * (p + r) + [0] * (
            width_r - r
        )
        assert data.batch["position_ids"][i, width_p - p : width_p + r].tolist() == list(range(p + r))
        assert data.batch["rollout_log_probs"][i].tolist() == [-0.5] * r + [0.0] * (width_r - r)
    assert data.batch["rollout_log_probs"].dtype == torch.float32
    assert torch.equal(
        data.batch["input_ids"], torch.cat([data.batch["prompts"], data.batch["responses"]], 1)
    )
    assert {type(v) for v in data.non_tensor_batch["turn"]} == {int}


async def test_groups_hold_all_episodes_of_one_task_and_no_other(make_collector, scripted, tasks) -> None:
    result = await make_collector(scripted()).collect([*tasks, tasks[0]], 3, step=1)
    columns = result.batch.non_tensor_batch
    groups: dict[str, set[str]] = {}
    for uid, task, traj in zip(columns["uid"], columns["task_id"], columns["traj_uid"], strict=True):
        groups.setdefault(uid, set()).add(task)
        assert traj.startswith(uid)
    assert len(groups) == 3
    assert all(len(t) == 1 for t in groups.values())
    assert len(set(columns["traj_uid"])) == 9


async def test_result_does_not_depend_on_which_reply_comes_first(make_collector, scripted, tasks) -> None:
    async def at_random(_request: Any) -> None:
        await asyncio.sleep(random.random() * 0.02)

    plain = await make_collector(scripted(noisy_script)).collect(tasks, 4, step=1)
    shuffled = await make_collector(
        scripted(noisy_script, delay=at_random), max_concurrent_episodes=5
    ).collect(tasks, 4, step=1)
    assert plain.metrics == shuffled.metrics
    assert [e.to_json() for e in plain.episodes] == [e.to_json() for e in shuffled.episodes]
    for key, tensor in plain.batch.batch.items():
        assert torch.equal(tensor, shuffled.batch.batch[key])
    for key, column in plain.batch.non_tensor_batch.items():
        assert list(column) == list(shuffled.batch.non_tensor_batch[key])


async def test_every_request_has_its_own_seed_that_step_and_run_seed_change(
    make_collector, scripted, tasks
) -> None:
    async def seeds(step: int, seed: int, validate: bool = False) -> list[int]:
        engine = scripted()
        result = await make_collector(engine, seed=seed).collect(tasks, 3, step=step, validate=validate)
        return [s.request.seed for e in result.episodes for s in e.samples]

    first = await seeds(1, 0)
    assert len(set(first)) == len(first)
    assert first == await seeds(1, 0)
    for other in (await seeds(2, 0), await seeds(1, 1), await seeds(1, 0, validate=True)):
        assert not set(first) & set(other)


async def test_validation_uses_its_own_sampling(make_collector, scripted, tasks) -> None:
    engine = scripted()
    await make_collector(engine).collect(tasks, 1, step=1, validate=True)
    assert {r.sampling.temperature for r in engine.requests} == {0.0}


async def test_no_more_episodes_run_at_once_than_allowed(make_collector, scripted, tasks) -> None:
    running, most = 0, 0

    async def count(_request: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await make_collector(scripted(delay=count), max_concurrent_episodes=3).collect(tasks, 5, step=1)
    assert most == 3


class FailsOnB(OneTurn):
    def reset(self, task: Task) -> Observation:
        if task.task_id == "b":
            raise KeyError("no such map")
        return super().reset(task)


async def test_failed_episodes_are_recorded_with_their_cause_and_left_out(
    make_collector, scripted, tasks
) -> None:
    result = await make_collector(scripted(), env=FailsOnB, max_failure_rate=0.5).collect(tasks, 2, step=1)
    assert [e.failed for e in result.episodes] == [False, False, True, True]
    assert "KeyError: 'no such map'" in result.episodes[2].failure
    assert set(result.batch.non_tensor_batch["task_id"]) == {"a"}
    assert result.metrics["episode/failure_rate"] == 0.5


async def test_too_many_failures_stop_with_the_causes_grouped(make_collector, scripted, tasks) -> None:
    with pytest.raises(TooManyFailuresError, match=r"(?s)max_failure_rate=0\.3.*2 x KeyError: 'no such map'"):
        await make_collector(scripted(), env=FailsOnB, max_failure_rate=0.3).collect(tasks, 2, step=1)


async def test_all_episodes_may_fail_when_allowed_and_give_no_batch(make_collector, scripted, tasks) -> None:
    result = await make_collector(scripted(), env=FailsOnB, max_failure_rate=1.0).collect(
        tasks[1:], 2, step=1
    )
    assert result.batch is None


class Closing(OneTurn):
    closed = 0

    def close(self) -> None:
        Closing.closed += 1


async def test_stopping_early_leaves_nothing_running_and_closes_every_environment(
    make_collector, scripted, tasks
) -> None:
    async def first_fails_others_wait(request: Any) -> None:
        if request.request_id.startswith("step1/a/0#0/"):
            raise RolloutError("engine gone")
        await asyncio.sleep(60)

    Closing.closed = 0
    before = asyncio.all_tasks()
    with pytest.raises(TooManyFailuresError, match="engine gone"):
        await make_collector(scripted(delay=first_fails_others_wait), env=Closing).collect(tasks, 2, step=1)
    assert asyncio.all_tasks() == before
    assert Closing.closed == 4


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Generation((), (), "stop"), "aborted or empty"),
        (Generation((1, 2), (0.0, 0.0), "abort"), "aborted or empty"),
        (Generation((1, 2), (0.0,), "stop"), "2 tokens but 1 log-probs"),
    ],
)
async def test_a_broken_generation_fails_the_episode_and_is_never_trained_on(
    make_collector, tasks, reply, message
) -> None:
    class Broken:
        async def generate(self, _request: Any) -> list[Generation]:
            return [reply]

    result = await make_collector(Broken(), max_failure_rate=1.0).collect(tasks, 1, step=1)
    assert result.batch is None
    assert message in result.episodes[0].failure


async def test_metrics_count_calls_validity_lengths_and_rewards_per_agent(
    make_collector, scripted, tasks
) -> None:
    def script(prompt: str, _request: Any) -> str:
        if "Check:" in prompt:
            return "<verify>approve</verify>" if "2+2" in prompt else "no idea"
        return "\\boxed{4}"

    metrics = (await make_collector(scripted(script)).collect(tasks, 1, step=1)).metrics
    assert metrics["episode/success_rate"] == 0.5
    assert metrics["agent/solver/calls"] == 3
    assert metrics["agent/verifier/calls"] == 2
    assert metrics["agent/verifier/valid_rate"] == 0.5
    assert metrics["agent/verifier/unparsable"] == 1
    assert metrics["agent/solver/valid_rate"] == 1
    assert metrics["agent/solver/response_length/mean"] == len("\\boxed{4}") + 1
    assert metrics["agent/solver/reward/mean"] == pytest.approx(1 / 3)


async def test_replies_cut_by_the_limit_are_counted(make_collector, scripted, tasks) -> None:
    result = await make_collector(scripted(), max_tokens=5).collect(tasks, 1, step=1)
    assert result.metrics["agent/solver/truncated_replies"] == 1.0
    assert result.batch.batch["responses"].shape[1] == 5


async def test_all_agents_read_the_one_memory_of_the_team(make_collector, scripted, tasks) -> None:
    class Goes(OneTurn):
        def step(self, action: str) -> Outcome:
            return Outcome()

    agents = {name: Remembers(name) for name in ("Solver", "Verifier")}
    result = await make_collector(
        scripted(["3", "yes", "4", "no"]), orchestra=Both(), agents=agents, env=Goes, max_steps=2
    ).collect(tasks[:1], 1, step=1)
    for at, memory in (((1, 0), "[]"), ((1, 1), "[]"), ((2, 0), "Action 1: '3'"), ((2, 1), "Action 1: '3'")):
        (sample,) = [s for s in result.episodes[0].samples if (s.identity.turn, s.identity.call) == at]
        assert memory in sample.request.prompt_text
        assert "yes" not in sample.request.prompt_text


@pytest.mark.parametrize(("episodes", "settings"), [(4, {"env_threads": 4}), (100, {})])
async def test_blocking_environments_do_not_stall_each_other(
    make_collector, scripted, episodes: int, settings: dict[str, int]
) -> None:
    import threading

    together = threading.Barrier(episodes, timeout=20)

    class Meets(BaseEnv):
        def reset(self, task: Task) -> Observation:
            together.wait()
            return Observation(task.prompt)

        def step(self, _action: str) -> Outcome:
            return Outcome(done=True)

    tasks = [Task(str(i), "?") for i in range(episodes)]
    result = await make_collector(scripted(), env=Meets, **settings).collect(tasks, 1, step=1)
    assert not any(e.failed for e in result.episodes)


async def test_a_dead_engine_ends_all_episodes_with_one_error(
    make_collector, scripted, tasks, caplog: pytest.LogCaptureFixture
) -> None:
    """Every episode gets the error at once: the first is raised, and asyncio has nothing to say of the
    others.
    """
    engine = scripted()

    async def gone(request: GenerateRequest) -> list[Generation]:
        raise EngineGoneError("engine died twice")

    engine.generate = gone
    with pytest.raises(EngineGoneError, match="died twice"):
        await make_collector(engine).collect(tasks, 3, step=1)
    gc.collect()
    assert not caplog.records
