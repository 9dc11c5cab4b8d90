"""Whole runs that play more than one collection a step: dynamic sampling and ReMax's greedy baselines."""

import json
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system.rollout.collector import Collector
from tests.e2e.conftest import Run, read_metrics, weights
from tests.waiting import send_signal
from verl.trainer.ppo.collect.step_samples import NoSamplesError

# Only every third task pays anything, so two of three have no signal.
WORLD = """
import zlib

from agent_system.environment import Outcome
from agent_system.registry import EnvRegistry
from my_flow_package import MyWorld


@EnvRegistry.register("mostly_silent")
class MostlySilent(MyWorld):
    def reset(self, task):
        self.pays = int(task.prompt.rstrip("?")) % 3 == 0
        return super().reset(task)

    def act(self, agent_id, action):
        return Outcome(local=self.pays * zlib.crc32(action.encode()) % 100 / 100)


@EnvRegistry.register("one_sided")
class OneSided(MyWorld):
    def act(self, agent_id, action):
        return super().act(agent_id, action) if agent_id == "Asker" else Outcome(local=1.0)
"""
FILTER: Mapping[str, Any] = {
    "env.env_name": "mostly_silent",
    "algorithm.filter_groups.metric": "seq_reward",
    "trainer.save_freq": 1,
}


@pytest.fixture
def mostly_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Changes that make two of three tasks pay nothing."""
    (tmp_path / "mostly_silent_package.py").write_text(WORLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return dict(FILTER) | {"agent.plugins": "[my_flow_package,mostly_silent_package]"}


def episodes_of(run_dir: Path, step: int) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (run_dir / "trajectories" / f"train_{step:06d}.jsonl").read_text().splitlines()
    ]


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if "actor/lr" in line]


def test_a_filtered_run_trains_full_batches_of_tasks_with_a_signal(
    train: Run, tmp_path: Path, mostly_silent: dict[str, str]
) -> None:
    train(mostly_silent)
    lines = steps_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        episodes = episodes_of(tmp_path / "run", line["step"])
        collections = line["train/filter_groups/num_gen_batches"]
        assert len(episodes) == collections * 2 * 3 == line["episode/count"]
        assert (
            len({e["task_id"] for e in episodes})
            == collections * 2
            == line["train/filter_groups/tasks_drawn"]
        )
        assert line["train/filter_groups/tasks_missing"] == 0
        assert 0 < line["train/filter_groups/dropped/asker"] < 1
        assert line["agent/asker/zero_signal_groups"] == line["agent/verifier_agent/zero_signal_groups"] == 0
        assert line["perf/generated_tokens"] == sum(
            c["response_tokens"] for e in episodes for c in e["calls"]
        )
        assert all(math.isfinite(value) for value in line.values())
    assert max(line["train/filter_groups/num_gen_batches"] for line in lines) > 1


def test_a_signal_between_two_collections_of_a_step_costs_no_task(
    train: Run, tmp_path: Path, mostly_silent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted step is played again from its first task: the resumed run equals one that was never
    stopped.
    """
    three = mostly_silent | {"trainer.total_training_steps": 3}
    train(three | {"trainer.default_local_dir": tmp_path / "whole"})
    several = next(
        line["step"]
        for line in steps_of(tmp_path / "whole")
        if line["train/filter_groups/num_gen_batches"] > 1 < line["step"]
    )
    collect = Collector.collect

    async def stopped(self: Any, tasks: Any, n: int, *, step: int, attempt: int = 0, **rest: Any) -> Any:
        if (step, attempt) == (several, 1):
            monkeypatch.setattr(Collector, "collect", collect)
            send_signal(signal.SIGINT)
        return await collect(self, tasks, n, step=step, attempt=attempt, **rest)

    monkeypatch.setattr(Collector, "collect", stopped)
    assert train(three).stopped_by == signal.SIGINT
    assert steps_of(tmp_path / "run")[-1]["step"] == several - 1
    assert train(three).progress.global_step == 3
    assert weights(tmp_path / "run", 3) == weights(tmp_path / "whole", 3)
    assert [e["uid"] for e in episodes_of(tmp_path / "run", 3)] == [
        e["uid"] for e in episodes_of(tmp_path / "whole", 3)
    ]


def test_when_no_task_has_a_signal_the_run_says_why_and_keeps_the_episodes(
    train: Run, tmp_path: Path, mostly_silent: dict[str, str]
) -> None:
    with pytest.raises(
        NoSamplesError,
        match=r"step 1: team_reward differs within no group of 12 tasks .* too easy or too hard",
    ):
        train(mostly_silent | {"algorithm.filter_groups.metric": "team_reward"})
    assert len(episodes_of(tmp_path / "run", 1)) == 12 * 3
    (line,) = [line for line in read_metrics(tmp_path / "run") if line["step"] == 1]
    assert (
        line["train/filter_groups/dropped/asker"] == line["train/filter_groups/dropped/verifier_agent"] == 1
    )


def test_too_few_tasks_and_a_policy_without_rows_still_train(
    train: Run, tmp_path: Path, mostly_silent: dict[str, str]
) -> None:
    """Two mini-batches of what is left of two tasks; the Verifier, paid the same for everything, stays as it
    is.
    """
    few = {
        "algorithm.filter_groups.max_num_gen_batches": 1,
        "data.shuffle": False,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    }
    train(mostly_silent | few)
    lines = steps_of(tmp_path / "run")
    assert [line["train/filter_groups/tasks_missing"] for line in lines] == [1.0, 1.0]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    train(mostly_silent | {"env.env_name": "one_sided", "trainer.default_local_dir": tmp_path / "one_sided"})
    (first, second) = (weights(tmp_path / "one_sided", step) for step in (1, 2))
    assert first["asker"] != second["asker"]
    assert first["verifier_agent"] == second["verifier_agent"]
    assert steps_of(tmp_path / "one_sided")[0]["train/filter_groups/dropped/verifier_agent"] == 1.0


def test_remax_compares_with_a_greedy_episode_of_each_task(train: Run, tmp_path: Path) -> None:
    fixed = {
        "algorithm.adv_estimator": "remax",
        "data.shuffle": False,
        "trainer.total_training_steps": 1,
        "env.rollout.n": 2,
    }
    train(fixed)
    train(fixed | {"data.seed": 5, "trainer.default_local_dir": tmp_path / "other"})
    both = [episodes_of(tmp_path / name, 1) for name in ("run", "other")]
    greedy = [[e for e in episodes if e["uid"].endswith("/greedy")] for episodes in both]
    assert [len(e) for e in greedy] == [2, 2]
    assert [len(e) for e in both] == [6, 6]
    said = [[c["reply"] for e in episodes for c in e["calls"]] for episodes in greedy]
    assert said[0] == said[1], "greedy replies depend on the seed"
    assert [c["reply"] for e in both[0][:4] for c in e["calls"]] != [
        c["reply"] for e in both[1][:4] for c in e["calls"]
    ]
    (line,) = steps_of(tmp_path / "run")
    earned = {(e["task_id"], c["agent_id"]): c["reward"] for e in greedy[0] for c in e["calls"]}
    expected = [earned[(e["task_id"], c["agent_id"])] for e in both[0][:4] for c in e["calls"]]
    assert line["train/remax/baseline"] == pytest.approx(sum(expected) / len(expected))
    assert line["train/remax/silent"] == line["train/remax/failed"] == 0
    sampled = [(e["task_id"], c) for e in both[0][:4] for c in e["calls"]]
    tokens = sum(c["response_tokens"] for _, c in sampled)
    advantage = (
        sum((c["reward"] - earned[(task, c["agent_id"])]) * c["response_tokens"] for task, c in sampled)
        / tokens
    )
    assert line["critic/advantages/mean"] == pytest.approx(advantage, abs=1e-6)
    assert line["perf/generated_tokens"] == sum(c["response_tokens"] for e in both[0] for c in e["calls"])
