"""Groups without a signal are left out and new tasks drawn for them; ReMax's baselines come from greedy
episodes.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import plan_of
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.config.algorithm import MGRPOConfig
from verl.trainer.config.spec import ConfigError, check_values
from verl.trainer.plan.agents import group_fields
from verl.trainer.plan.group_checks import check_filter_groups
from verl.trainer.ppo.collect.dynamic_sampling import _dropped_shares, draw_until_full, signal_rows
from verl.trainer.ppo.collect.greedy_baseline import reward_baselines
from verl.trainer.ppo.core_algos import group_index
from verl.trainer.ppo.credit.advantage import compute_advantage, group_keys
from verl.utils.dataset import TaskLoader

Row = tuple[str, int, str, float]  # task, episode, agent, reward


def make_batch(rows: Sequence[Row], prefix: str = "", **columns: list[Any]) -> DataProto:
    """One row a sample, one token a reply."""
    non_tensors = {
        "uid": [f"{prefix}{task}" for task, *_ in rows],
        "traj_uid": [f"{prefix}{task}#{episode}" for task, episode, *_ in rows],
        "task_id": [task for task, *_ in rows],
        "agent_id": [agent for _, _, agent, _ in rows],
        "turn": [1] * len(rows),
        "reward": [reward for *_, reward in rows],
        "team_reward": [0.0] * len(rows),
        "local_reward": [reward for *_, reward in rows],
    } | columns
    ones = torch.ones(len(rows), 1, dtype=torch.long)
    tensors = {
        "prompts": ones,
        "responses": ones,
        "response_mask": ones.clone(),
        "attention_mask": torch.ones(len(rows), 2).long(),
    }
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in non_tensors.items()}
    )


ROWS: list[Row] = [
    ("a", 0, "S", 1.0), ("a", 0, "V", 0.5),
    ("a", 1, "S", 0.0), ("a", 1, "V", 0.5),
    ("b", 0, "S", 0.3), ("b", 0, "V", 0.7),
    ("b", 1, "S", 0.3), ("b", 1, "V", 0.9),
]  # fmt: skip


def test_a_group_has_a_signal_when_its_rewards_differ() -> None:
    assert signal_rows(make_batch(ROWS), AlgorithmConfig()).tolist() == [
        True,
        False,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


def test_grouped_by_task_trajectories_are_compared() -> None:
    # Task a: means 0.75 and 0.25 differ. Task c: 0.5 and 0.5 are equal although the samples are not.
    rows = [*ROWS[:4], ("c", 0, "S", 1.0), ("c", 0, "V", 0.0), ("c", 1, "S", 0.0), ("c", 1, "V", 1.0)]
    assert (
        signal_rows(make_batch(rows), AlgorithmConfig(group_by=["uid"])).tolist() == [True] * 4 + [False] * 4
    )
    over_samples = AlgorithmConfig(group_by=["uid"], statistics_over="samples")
    assert signal_rows(make_batch(rows), over_samples).all()


def test_each_agent_is_filtered_by_its_own_group_key() -> None:
    own = AlgorithmConfig(per_agent={"V": {"group_by": ["uid", "agent_id", "traj_uid"], "singleton": "raw"}})
    assert signal_rows(make_batch(ROWS), own).tolist() == [True, True, True, True, False, True, False, True]


def test_a_group_of_one_has_a_signal_only_where_it_is_trained_on() -> None:
    batch = make_batch([("a", 0, "S", 1.0)])
    assert not signal_rows(batch, AlgorithmConfig()).any()
    assert signal_rows(batch, AlgorithmConfig(singleton="raw")).all()


def test_a_row_without_a_response_token_makes_no_signal() -> None:
    batch = make_batch(ROWS)
    batch.batch["response_mask"][0] = 0  # the only other reward of S on task a
    assert signal_rows(batch, AlgorithmConfig()).tolist() == [False] * 5 + [True, False, True]


def test_the_metric_says_what_must_differ() -> None:
    config = AlgorithmConfig()
    columns = {
        "team_reward": [1.0, 1.0, 0.0, 1.0],
        "local_reward": [0.0, 0.2, 1.0, 0.2],
        "mixed_reward": [1.0, 1.2, 1.0, 1.2],
    }
    batch = make_batch(ROWS[:4], reward=[0.0, 0.1, 0.2, 0.3], **columns)
    for metric, expected in {
        "seq_reward": [True, True, True, True],
        "team_reward": [True, False, True, False],
        "local_reward": [True, False, True, False],
        # the column, whatever made it: a propagation may have scaled the local reward
        "mixed_reward": [
            False,
            False,
            False,
            False,
        ],
    }.items():
        config.filter_groups.metric = metric
        assert signal_rows(batch, config).tolist() == expected, metric


def test_rewards_that_differ_by_float_noise_are_no_signal() -> None:
    noise = make_batch([("a", 0, "S", 0.1 + 0.2), ("a", 1, "S", 0.3)])
    assert noise.non_tensor_batch["reward"][0] != noise.non_tensor_batch["reward"][1]
    assert not signal_rows(noise, AlgorithmConfig()).any()


def test_trajectories_are_weighed_as_the_advantage_weighs_them() -> None:
    # Episode 0: S twice (1, 0), V once (0.25). Episode 1: S 0.5, V 0.25. Weighed by calls, S counts once:
    # 0.375 in both. Plain: 1.25 / 3.
    rows = [
        ("a", 0, "S", 1.0),
        ("a", 0, "S", 0.0),
        ("a", 0, "V", 0.25),
        ("a", 1, "S", 0.5),
        ("a", 1, "V", 0.25),
    ]
    keys = {"group_by": ["uid"]}
    assert signal_rows(make_batch(rows), AlgorithmConfig(**keys)).all()
    assert not signal_rows(make_batch(rows), AlgorithmConfig(**keys, call_weighting="trajectory")).any()


def test_m_grpo_is_filtered_by_the_main_agents_episodes_and_the_sub_agents_calls() -> None:
    # Task a: the trajectories' means are equal, the main agent's episodes (1 and 0) and the calls are not.
    # Task b: the means of the main agent's two calls are equal (0.5), those of the sub-agent's calls are all
    # 0.2.
    rows = [("a", 0, "S", 1.0), ("a", 0, "V", 0.0), ("a", 1, "S", 0.0), ("a", 1, "V", 1.0)]
    rows += [
        ("b", 0, "S", 1.0),
        ("b", 0, "S", 0.0),
        ("b", 0, "V", 0.2),
        ("b", 1, "S", 0.5),
        ("b", 1, "V", 0.2),
    ]
    # Task c: the sub-agent's calls differ inside an episode only.
    rows += [("c", 0, "V", 1.0), ("c", 0, "V", 0.0), ("c", 1, "V", 1.0), ("c", 1, "V", 0.0)]
    for keys in ({"group_by": ["uid"]}, {}):
        config = AlgorithmConfig(adv_estimator="m_grpo", m_grpo=MGRPOConfig(main_agent="S"), **keys)
        assert signal_rows(make_batch(rows), config).tolist() == [True] * 4 + [False] * 5 + [True] * 4


@settings(max_examples=60, deadline=None)
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=12, max_size=12),
    keys=st.sampled_from(
        [{}, {"group_by": ["uid"]}, {"group_by": ["uid", "agent_id", "turn"]}, {"singleton": "raw"}]
    ),
    estimator=st.sampled_from(["grpo", "rloo", "opo", "m_grpo"]),
)
def test_what_is_dropped_is_what_the_advantage_would_not_learn_from(
    rewards: list[float], keys: dict[str, Any], estimator: str
) -> None:
    rows = [(task, episode, agent, 0.0) for task in "ab" for episode in range(3) for agent in "SV"]
    config = AlgorithmConfig(**keys, adv_estimator=estimator, m_grpo=MGRPOConfig(main_agent="S"))
    batch = make_batch(rows, reward=rewards, policy_id=["p"] * 12)
    batch.batch["token_level_rewards"] = torch.tensor(rewards)[:, None]
    learnt = compute_advantage(batch, estimator, config=config).batch["advantages"].abs().sum(dim=1).numpy()
    groups = group_keys(batch, group_fields(config))
    if estimator == "m_grpo":
        groups = group_index([groups, batch.non_tensor_batch["agent_id"]])
    assert signal_rows(batch, config).tolist() == [bool(learnt[groups == g].max() > 0) for g in groups]


@dataclass
class Table:
    """A collector that pays by a table: reward of each episode of a task; one agent, tasks of the same name
    never twice in a step.
    """

    pay: Mapping[int, Sequence[float]]
    attempts: list[tuple[list[int], int]] = field(default_factory=list)

    async def collect(self, tasks: Sequence[int], n: int, *, step: int, attempt: int = 0, **_: Any) -> Any:
        self.attempts.append((list(tasks), attempt))
        played = [(str(t), i, "S", self.pay[t][i]) for t in tasks for i in range(n)]
        batch = make_batch(played, prefix=f"{step}.{attempt}/")
        episodes = [
            SimpleNamespace(uid=f"{step}.{attempt}/{t}", failure=None, team_reward=r, reply_tokens=1)
            for t, _, _, r in played
        ]
        return SimpleNamespace(
            batch=batch, episodes=episodes, metrics={"episode/count": float(len(episodes))}
        )

    def join(self, results: Sequence[Any]) -> Any:
        return SimpleNamespace(
            batch=DataProto.concat([r.batch for r in results]),
            episodes=[e for r in results for e in r.episodes],
            metrics={"episode/count": sum(r.metrics["episode/count"] for r in results)},
        )


def draw(pay: Mapping[int, Sequence[float]], batch_size: int, **rule: Any) -> tuple[Any, Table, TaskLoader]:
    config = RunConfig()
    config.data.train_batch_size = batch_size
    config.env.rollout.n = 2
    config.algorithm.filter_groups.metric = "seq_reward"
    for name, value in rule.items():
        setattr(config.algorithm.filter_groups, name, value)
    loader = TaskLoader(range(len(pay)), batch_size, shuffle=False)
    table = Table(pay)
    return asyncio.run(draw_until_full(config, table, loader, step=1)), table, loader  # type: ignore[arg-type]


EQUAL, DIFFERENT = (0.5, 0.5), (0.0, 1.0)


def tasks_of(drawn: Any) -> list[str]:
    return list(dict.fromkeys(drawn.batch.non_tensor_batch["task_id"]))


def test_new_tasks_are_drawn_until_the_batch_is_full_and_what_is_too_much_is_cut_in_order() -> None:
    pay = {
        0: DIFFERENT,
        1: EQUAL,
        2: EQUAL,
        3: DIFFERENT,
        4: DIFFERENT,
        5: DIFFERENT,
        6: DIFFERENT,
        7: EQUAL,
        8: EQUAL,
    }
    drawn, table, loader = draw(pay, 3)
    assert table.attempts == [([0, 1, 2], 0), ([3, 4, 5], 1)]
    assert tasks_of(drawn) == ["0", "3", "4"]
    assert len(drawn.batch) == 6
    assert loader.position == 6
    assert drawn.metrics == {
        "train/filter_groups/num_gen_batches": 2.0,
        "train/filter_groups/tasks_drawn": 6.0,
        "train/filter_groups/tasks_with_signal": 4.0,
        "train/filter_groups/tasks_missing": 0.0,
        "train/filter_groups/dropped/s": pytest.approx(2 / 6),
        "episode/count": 12.0,
    }
    assert len(drawn.episodes) == 12


def test_every_group_that_is_cut_has_a_cause() -> None:
    pay = {0: DIFFERENT, 1: EQUAL, 2: EQUAL, 3: DIFFERENT, 4: DIFFERENT, 5: DIFFERENT}
    drawn, _, _ = draw(pay, 3)
    assert drawn.left_out == {"1.0/1": "no signal", "1.0/2": "no signal", "1.1/5": "surplus"}


def test_what_is_dropped_is_counted_in_groups_however_many_rows_they_have() -> None:
    # S: task a, of three rows, has no signal, task b, of two, has one; task c, where it has no token, is no
    # group. V: task b has none.
    rows = [
        *(("a", episode, "S", 0.5) for episode in range(3)), ("a", 0, "V", 0.5), ("a", 1, "V", 0.6),
        ("a", 2, "V", 0.5),
        ("b", 0, "S", 0.0), ("b", 1, "S", 1.0), ("b", 0, "V", 0.5), ("b", 1, "V", 0.5),
        ("c", 0, "S", 0.0), ("c", 1, "S", 1.0),
    ]  # fmt: skip
    batch = make_batch(rows)
    batch.batch["response_mask"][-2:] = 0
    signal = signal_rows(batch, AlgorithmConfig())
    assert dict(_dropped_shares(batch, signal, AlgorithmConfig())) == {"dropped/s": 0.5, "dropped/v": 0.5}


def test_what_is_dropped_is_counted_by_turn() -> None:
    # Turn 1 of S is in all three groups, turn 2 in the first alone, which has a signal; V has no token at
    # all.
    rows = [(task, episode, "S", float(episode and task == "a")) for task in "abc" for episode in range(2)]
    batch = make_batch([*rows, ("a", 0, "S", 0.0), ("a", 0, "V", 0.0)], turn=[1] * 6 + [2, 1])
    batch.batch["response_mask"][-1] = 0
    signal = signal_rows(batch, AlgorithmConfig())
    shares = dict(_dropped_shares(batch, signal, AlgorithmConfig()))
    assert shares == {
        "dropped/s": pytest.approx(2 / 3),
        "dropped/s/turn_1": pytest.approx(2 / 3),
        "dropped/s/turn_2": 0.0,
    }


def test_without_a_full_batch_the_limit_of_collections_ends_the_drawing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pay = dict.fromkeys(range(12), EQUAL) | {1: DIFFERENT}
    drawn, table, _ = draw(pay, 2, max_num_gen_batches=3)
    assert len(table.attempts) == 3
    assert tasks_of(drawn) == ["1"]
    assert drawn.metrics["train/filter_groups/tasks_missing"] == 1.0
    assert "trains on 1 tasks instead of 2" in caplog.text


def test_no_task_is_drawn_twice_in_a_step_and_a_small_dataset_ends_the_drawing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn, table, _ = draw(dict.fromkeys(range(4), EQUAL) | {2: DIFFERENT}, 2, max_num_gen_batches=0)
    assert [tasks for tasks, _ in table.attempts] == [[0, 1], [2, 3]]
    assert tasks_of(drawn) == ["2"]
    assert "all tasks were sampled" in caplog.text


def test_when_nothing_differs_the_reason_is_given_with_the_episodes() -> None:
    drawn, _, _ = draw(dict.fromkeys(range(4), (1.0, 1.0)), 2)
    assert drawn.batch is None
    assert (
        drawn.metrics["train/filter_groups/dropped/s"] == 1.0
        and drawn.metrics["train/filter_groups/tasks_missing"] == 2.0
    )
    assert "seq_reward differs within no group of 4 tasks (2 collections)" in drawn.no_batch_reason
    assert "mean team reward: 1." in drawn.no_batch_reason
    assert "too easy or too hard" in drawn.no_batch_reason
    assert len(drawn.episodes) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filter_groups.metric": "acc"}, ["filter_groups.metric='acc'", "seq_reward"]),
        ({"filter_groups.max_num_gen_batches": -1}, ["max_num_gen_batches=-1", "at least 0"]),
        ({"adv_estimator": "gae"}, ["filter_groups.metric=seq_reward", "adv_estimator=gae"]),
        ({"adv_estimator": "remax"}, ["filter_groups.metric=seq_reward", "adv_estimator=remax"]),
        (
            {"adv_estimator": "reinforce_plus_plus"},
            ["filter_groups.metric=seq_reward", "adv_estimator=reinforce_plus_plus"],
        ),
        (
            {"per_agent": {"Verifier Agent": {"adv_estimator": "rae"}}},
            ["adv_estimator=rae", "agent 'Verifier Agent'"],
        ),
        ({"group_by": ["policy_id"]}, ["group_by=['policy_id']", "uid"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_contradicts_the_filter_is_refused_by_both_names(
    changes: dict[str, Any], words: list[str]
) -> None:
    config = RunConfig()
    config.agent.agent_ids = ["Solver Agent", "Verifier Agent"]
    config.algorithm.filter_groups.metric = "seq_reward"
    for key, value in changes.items():
        section, _, leaf = key.rpartition(".")
        setattr(config.algorithm.filter_groups if section else config.algorithm, leaf, value)
    with pytest.raises(ConfigError) as refused:
        check_values(config)
        check_filter_groups(config.algorithm, config.env, plan_of(config))
    assert [word for word in words if word not in str(refused.value)] == []


def test_one_episode_a_task_is_refused_and_the_kl_in_the_reward_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = RunConfig()
    config.agent.agent_ids = ["Solver Agent"]
    config.algorithm.filter_groups.metric = "seq_reward"
    config.algorithm.kl_ctrl.kl_coef = 0.001
    with caplog.at_level(logging.WARNING):
        check_filter_groups(config.algorithm, config.env, plan_of(config))
    assert "kl_coef" in caplog.text
    config.env.rollout.n = 1
    with pytest.raises(ConfigError, match=r"env\.rollout\.n=1"):
        check_filter_groups(config.algorithm, config.env, plan_of(config))


def test_a_baseline_is_the_greedy_reward_of_the_same_agent_and_task() -> None:
    sampled = make_batch(
        [("a", 0, "S", 1.0), ("a", 0, "V", 2.0), ("a", 1, "S", 0.0), ("b", 0, "S", 5.0), ("b", 1, "S", 7.0)]
    )
    greedy = make_batch([("a", 0, "S", 0.25), ("a", 0, "S", 0.75)], uid=["a/greedy", "a/greedy"])
    episodes = [
        SimpleNamespace(uid="a/greedy", failure=None, team_reward=3.0),
        SimpleNamespace(uid="b/greedy", failure="timeout", team_reward=9.0),
    ]
    values, metrics = reward_baselines(
        sampled, SimpleNamespace(batch=greedy, episodes=episodes, metrics={}), alpha=0.5
    )
    # S on a: the mean of 0.25 and 0.75. V was silent on a: 0.5 * 3. The greedy episode of b failed: the mean
    # of 5 and 7.
    assert values.tolist() == [0.5, 1.5, 0.5, 6.0, 6.0]
    assert metrics == {
        "train/remax/baseline": pytest.approx(14.5 / 5),
        "train/remax/silent": 0.2,
        "train/remax/failed": 0.4,
    }


@pytest.mark.parametrize(
    ("estimator", "learns"), [("gigpo", "single steps"), ("gdpo", "gdpo_reward_keys"), ("grpo", "")]
)
def test_what_the_filter_does_not_look_at_is_said(
    caplog: pytest.LogCaptureFixture, estimator: str, learns: str
) -> None:
    config = RunConfig()
    config.agent.agent_ids = ["Solver Agent"]
    config.algorithm.filter_groups.metric, config.algorithm.adv_estimator = "seq_reward", estimator
    with caplog.at_level(logging.WARNING):
        check_filter_groups(config.algorithm, config.env, plan_of(config))
    assert learns in caplog.text and bool(caplog.text) == bool(learns)
