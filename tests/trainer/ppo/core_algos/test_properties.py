"""What holds for every estimator, on random batches with keys that look alike: run through the dispatcher, as
a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import GAEConfig, GiGPOConfig, MGRPOConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, group_index
from verl.trainer.ppo.credit.advantage import compute_advantage, group_numbers

WIDTH = 3
TASKS = ("1", "11", "1 1", "", " ", "None", "1.0", "a_b", "a|b", "a,b", "('a', 'b')", "A")
AGENTS = ("a", "a ", "1")


@dataclass(frozen=True)
class Case:
    """One estimator under one setting, and which properties its method has.

    Attributes:
        changes: keys of `algorithm`.
        by_group: an advantage is a function of the row's own group: silent groups are exactly 0, other tasks
            change nothing.
        silent: an episode's rows whose group has equal scores are exactly 0, whatever others score;
            `by_group` methods are anyway.
        sums_to_zero: what the advantages of a group are weighed by (`WEIGHINGS`) when they sum to 0; None:
            they do not.
        renames: names of tasks and episodes mean nothing (M-GRPO draws by them).
    """

    estimator: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    by_group: bool = False
    silent: bool = False
    sums_to_zero: str | None = None
    renames: bool = True


WEIGHTED = {"call_weighting": "trajectory"}
TRAJECTORIES = {"group_by": ["uid"], "statistics_over": "trajectories"}
SAMPLES = {"group_by": ["uid"], "statistics_over": "samples"}
RAW = {"norm_adv_by_std_in_grpo": False}
TREE = {"group_by": ["traj_uid", "agent_id", "turn", "call"]}
PARALLEL = {"group_by": ["uid", "agent_id", "turn"]}
SUB_CALLS = {"m_grpo": MGRPOConfig(main_agent="1", sub_calls=3)}
BY_STD = {"gigpo": GiGPOConfig(mode="mean_std_norm")}
SIMILAR = {"gigpo": GiGPOConfig(enable_similarity=True, similarity_thresh=0.9)}
CASES = {
    "grpo": Case("grpo", by_group=True, sums_to_zero="rows"),
    "grpo, by task": Case("grpo", SAMPLES, by_group=True, sums_to_zero="rows"),
    "grpo, trajectories": Case("grpo", TRAJECTORIES, by_group=True, sums_to_zero="trajectories"),
    "grpo, trajectories, weighted": Case("grpo", TRAJECTORIES | WEIGHTED, by_group=True),
    "grpo, weighted": Case("grpo", WEIGHTED, by_group=True, sums_to_zero="rows"),
    "grpo, global": Case("grpo", {"group_by": []}, sums_to_zero="rows"),
    "grpo, tree": Case("grpo", TREE, by_group=True, sums_to_zero="rows"),
    "grpo, parallel": Case("grpo", PARALLEL, by_group=True, sums_to_zero="rows"),
    "dr_grpo": Case("grpo", RAW, by_group=True, sums_to_zero="rows"),
    "grpo_vectorized": Case("grpo_vectorized", by_group=True, sums_to_zero="rows"),
    "rloo": Case("rloo", by_group=True, sums_to_zero="rows"),
    "rloo, weighted": Case("rloo", WEIGHTED, by_group=True),
    "rloo, trajectories": Case("rloo", TRAJECTORIES, by_group=True, sums_to_zero="trajectories"),
    "rloo_vectorized": Case("rloo_vectorized", by_group=True, sums_to_zero="rows"),
    "opo": Case("opo", by_group=True, sums_to_zero="tokens"),
    "opo, trajectories": Case("opo", TRAJECTORIES, by_group=True, sums_to_zero="tokens"),
    "opo, trajectories, weighted": Case("opo", TRAJECTORIES | WEIGHTED, by_group=True, sums_to_zero="tokens"),
    "grpo_passk": Case("grpo_passk", by_group=True),
    "gpg": Case("gpg", silent=True, sums_to_zero="rows"),
    "gpg, trajectories": Case("gpg", TRAJECTORIES, silent=True),
    "m_grpo": Case("m_grpo", SUB_CALLS | RAW, by_group=True, sums_to_zero="drawn calls", renames=False),
    "m_grpo, by std": Case("m_grpo", SUB_CALLS, by_group=True, sums_to_zero="drawn calls", renames=False),
    "reinforce_plus_plus": Case("reinforce_plus_plus"),
    "reinforce_plus_plus_baseline": Case("reinforce_plus_plus_baseline", silent=True),
    "gigpo": Case("gigpo", by_group=True, sums_to_zero="rows"),
    "gigpo, trajectories, weighted": Case("gigpo", TRAJECTORIES | WEIGHTED, by_group=True),
    "gigpo, by std": Case("gigpo", BY_STD, by_group=True, sums_to_zero="rows"),
    "gigpo, similar states": Case("gigpo", SIMILAR | SAMPLES, by_group=True, sums_to_zero="rows"),
    "rae": Case("rae"),
    "gdpo": Case("gdpo", {"gdpo_reward_keys": ["step_reward", "score"]}, silent=True),
    "remax": Case("remax"),
    "gae": Case("gae"),
    "gae, turns": Case("gae", {"gae": GAEConfig(level="turn")}),
    "optimal_token_baseline": Case("optimal_token_baseline", by_group=True),
    "tir_optimal_token_baseline": Case("tir_optimal_token_baseline", by_group=True),
}
# What holds for every estimator holds for one that is not listed.
CASES = {
    name: Case(name) for name, fn in ADV_ESTIMATOR_REGISTRY.items() if fn.__module__.startswith("verl.")
} | CASES

ROW = st.tuples(
    st.sampled_from(TASKS), st.integers(0, 1), st.sampled_from(AGENTS), st.integers(1, 2),
    st.floats(-4, 4, width=16), st.integers(0, WIDTH), st.integers(0, 2),
)  # fmt: skip
# Few tasks a batch, so that groups have several rows.
ROWS = st.lists(st.sampled_from(TASKS), min_size=1, max_size=3, unique=True).flatmap(
    lambda tasks: st.lists(
        ROW.map(lambda row: (tasks[TASKS.index(row[0]) % len(tasks)], *row[1:])), min_size=1, max_size=24
    )
)
QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def state(anchor: int) -> str:
    """0, 1 and 2 are a chain of similar states, whose ends are not similar; so are 3, 4 and 5, and so on, far
    from the others.
    """
    return chr(ord("A") + anchor // 3) * 6 + "x" * (anchor % 3)


def make(rows: list[tuple], rename: Mapping[str, str] | None = None) -> DataProto:
    """A batch with everything that any estimator asks for; each row's numbers depend on the row and its place
    alone.
    """
    tasks, episodes, agents, turns, scores, lengths, anchors = zip(*rows, strict=True)
    count = len(rows)
    names = [task if rename is None else rename[task] for task in tasks]
    mask = (torch.arange(WIDTH) < torch.tensor(lengths).unsqueeze(1)).long()
    rewards = torch.zeros(count, WIDTH)
    rewards[torch.arange(count), (torch.tensor(lengths) - 1).clamp(min=0)] = torch.tensor(
        scores, dtype=torch.float32
    )
    noise = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))[:count]
    columns = {
        "uid": names,
        "traj_uid": [f"{name}#{episode}" for name, episode in zip(names, episodes, strict=True)],
        "agent_id": agents,
        "policy_id": [agent.strip() for agent in agents],
        "turn": turns,
        "call": [0] * count,
        "candidate": list(range(count)),
        "anchor": [state(anchor) for anchor in anchors],
        "step_reward": [float(score) * 2 for score in scores],
        "score": [float(score) for score in scores],
    }
    tensors = {
        "token_level_rewards": rewards, "response_mask": mask, "values": noise,
        "reward_baselines": noise[:, 0],
        "old_log_probs": -noise.abs(), "sum_pi_squared": noise.abs() / 4,
    }  # fmt: skip
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(count, dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def with_tool_message(data: DataProto) -> DataProto:
    """The batch with a masked token after the first of every reply, without a reward of its own."""
    wide = {
        name: torch.cat([t[:, :1], torch.full_like(t[:, :1], 7), t[:, 1:]], dim=1)
        for name, t in data.batch.items()
        if t.dim() == 2
    }
    wide["response_mask"][:, 1] = wide["token_level_rewards"][:, 1] = 0
    return DataProto.from_dict(
        tensors={**dict(data.batch.items()), **wide}, non_tensors=dict(data.non_tensor_batch)
    )


def estimate(case: Case, data: DataProto) -> torch.Tensor:
    """Advantages `[bsz, WIDTH]`."""
    config = AlgorithmConfig(**({"adv_estimator": case.estimator, "gamma": 0.5} | dict(case.changes)))
    by_std = config.norm_adv_by_std_in_grpo
    return compute_advantage(
        data, case.estimator, 0.5, 0.9, norm_adv_by_std_in_grpo=by_std, config=config
    ).batch["advantages"]


@every_case
@QUICK
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_bit(case: Case, rows: list[tuple], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = estimate(case, make(rows))
    assert torch.equal(plain[order], estimate(case, make(rows).select_idxs(order)))


@every_case
@QUICK
@given(ROWS, st.data())
def test_padding_rows_change_no_bit_and_have_no_advantage(case: Case, rows: list[tuple], data: Any) -> None:
    padding = data.draw(st.lists(ROW, min_size=1, max_size=4))
    # In the tasks of the batch, where they could be taken for calls of it.
    padded = make(rows + [(rows[i % len(rows)][0], *row[1:5], 0, row[6]) for i, row in enumerate(padding)])
    padded.batch["token_level_rewards"][len(rows) :] = float("nan")
    padded.batch["values"][len(rows) :] = float("nan")
    advantages = estimate(case, padded)
    assert torch.equal(advantages[: len(rows)], estimate(case, make(rows)))
    assert (advantages[padded.batch["response_mask"] == 0] == 0).all()
    # it compares columns, and is refused with masked sequences
    if case.estimator != "optimal_token_baseline":
        assert torch.allclose(estimate(case, with_tool_message(padded))[:, [0, 2, 3]], advantages, atol=1e-6)


@every_case
@QUICK
@given(ROWS)
def test_names_of_tasks_and_episodes_mean_nothing(case: Case, rows: list[tuple]) -> None:
    if not case.renames:
        return
    renamed = {task: f"{len(TASKS) - i:03d}" for i, task in enumerate(TASKS)}
    assert torch.equal(estimate(case, make(rows)), estimate(case, make(rows, renamed)))


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.by_group], ids=[n for n, c in CASES.items() if c.by_group]
)
@QUICK
@given(ROWS)
def test_groups_never_span_tasks(case: Case, rows: list[tuple]) -> None:
    whole = estimate(case, make(rows))
    task = rows[0][0]
    own = [i for i, row in enumerate(rows) if row[0] == task]
    assert torch.equal(whole[own], estimate(case, make(rows).select_idxs(own)))


SILENT = {name: case for name, case in CASES.items() if case.by_group or case.silent}


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
@QUICK
@given(ROWS, st.floats(-4, 4, width=32))
def test_a_group_without_a_signal_is_exactly_zero(case: Case, rows: list[tuple], score: float) -> None:
    data = make([(*row[:4], score, WIDTH, 3 * i) for i, row in enumerate(rows)])
    assert (estimate(case, data) == 0).all()


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
@QUICK
@given(ROWS, ROWS, st.floats(-4, 4, width=32))
def test_a_group_without_a_signal_stays_zero_beside_others(
    case: Case, rows: list[tuple], others: list[tuple], score: float
) -> None:
    """Equal scores of one task, in replies of different length, beside tasks that have a signal: nothing
    moves them off 0.
    """
    if case.changes.get("group_by") == []:
        return
    silent = [("A", *row[1:4], score, row[5], 3 * i) for i, row in enumerate(rows)]
    loud = [(TASKS[TASKS.index(row[0]) % (len(TASKS) - 1)], *row[1:]) for row in others]
    advantages = estimate(case, make((silent + loud)[:64]))
    assert (advantages[: len(silent)] == 0).all()


def _rows(data: DataProto, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every row, as often as it counts in the loss."""
    counted = "row_weights" in data.batch.keys()  # noqa: SIM118
    return groups, data.batch["row_weights"].double().numpy() if counted else np.ones(len(data))


def _tokens(data: DataProto, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every token, as often as its row counts in the loss (OPO's baseline leans to long replies)."""
    return groups, data.batch["response_mask"].sum(dim=-1).double().numpy() * _rows(data, groups)[1]


def _once(units: np.ndarray, real: np.ndarray) -> np.ndarray:
    """One over the number of real rows that a row shares its unit with; 0 for a row without a token."""
    return real / np.maximum(np.bincount(units, weights=real), 1)[units]


def _trajectories(data: DataProto, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every episode once, however many rows it has."""
    real = data.batch["response_mask"].bool().any(dim=-1).double().numpy()
    return groups, _once(group_index([groups, data.non_tensor_batch["traj_uid"]]), real)


def _drawn_calls(data: DataProto, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """M-GRPO: the main agent's episodes once each, and apart from them the sub-agents' calls as often as they
    were drawn.
    """
    main = data.non_tensor_batch["agent_id"] == "1"
    episodes = _once(
        group_index([data.non_tensor_batch["traj_uid"], main]),
        data.batch["response_mask"].bool().any(dim=-1).double().numpy(),
    )
    return group_index([groups, main]), np.where(main, episodes, data.batch["row_weights"].double().numpy())


WEIGHINGS = {"rows": _rows, "tokens": _tokens, "trajectories": _trajectories, "drawn calls": _drawn_calls}


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.sums_to_zero], ids=[n for n, c in CASES.items() if c.sums_to_zero]
)
@QUICK
@given(ROWS)
def test_the_advantages_of_a_group_sum_to_zero(case: Case, rows: list[tuple]) -> None:
    data = make(rows)
    assert case.sums_to_zero is not None
    advantages = estimate(case, data)[:, 0].double().numpy()
    groups, weights = WEIGHINGS[case.sums_to_zero](
        data, group_numbers(data, AlgorithmConfig(**dict(case.changes)))
    )
    sums = np.bincount(groups, weights=weights * advantages)
    assert np.abs(sums).max() < 1e-4
