"""M-GRPO by hand: two kinds of group, and calls that are drawn instead of copied."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import MGRPOConfig
from verl.trainer.ppo.core_algos import compute_m_grpo_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.m_grpo import aligned_calls
from verl.trainer.ppo.credit.advantage import compute_advantage


def text(values: list[str]) -> np.ndarray:
    return np.array(values, dtype=object)


def config(calls: int, main: str | None = "Main") -> SimpleNamespace:
    return SimpleNamespace(m_grpo=SimpleNamespace(main_agent=main, sub_calls=calls), singleton="zero")


def estimate(
    scores: list[float], agents: list[str], episodes: list[str], calls: int, **changes
) -> tuple[torch.Tensor, np.ndarray]:
    """One token a row, all rows of one task; advantages `[bsz]` and weights `[bsz]`."""
    seen: dict = {}
    turns = [
        seen.__setitem__((a, e), seen.get((a, e), -1) + 1) or seen[a, e]
        for a, e in zip(agents, episodes, strict=True)
    ]
    arguments = {
        "index": np.zeros(len(scores)),
        "agent_index": text(agents),
        "traj_uid": text(episodes),
        "turn_index": np.array(turns),
    }
    arguments |= {"norm_adv_by_std_in_grpo": False, "config": config(calls), "seed": 3} | changes
    rewards = torch.tensor(scores).unsqueeze(1)
    advantages, returns, weights = compute_m_grpo_outcome_advantage(
        rewards, torch.ones_like(rewards).long(), **arguments
    )
    assert torch.equal(advantages, returns)
    return advantages[:, 0], weights


def test_the_main_agents_episodes_are_compared_with_each_other_and_its_calls_share_an_advantage() -> None:
    # episode means of the main agent: (1 + 3) / 2 = 2 and 6, so mean 4; sub-agents: 10 and 20, each twice, so
    # mean 15.
    advantages, weights = estimate(
        [1, 3, 10, 6, 20], ["Main", "Main", "Sub", "Main", "Sub"], ["e", "e", "e", "f", "f"], calls=2
    )
    assert advantages.tolist() == [-2.0, -2.0, -5.0, 2.0, 5.0]
    assert weights.tolist() == [1.0, 1.0, 2.0, 1.0, 2.0]


def test_weights_stand_for_copies() -> None:
    # One call in e (weight 3), three in f: mean (3 * 4 + 1 + 2 + 3) / 6 = 3.
    advantages, weights = estimate([4, 1, 2, 3], ["Sub"] * 4, ["e", "f", "f", "f"], calls=3)
    assert weights.tolist() == [3.0, 1.0, 1.0, 1.0]
    assert advantages.tolist() == [1.0, -2.0, -1.0, 0.0]


def test_division_by_the_deviation_of_each_kind_of_group() -> None:
    # Main agent: episodes 2 and 6, deviation sqrt(8). Sub-agents: weights 3, 1, 1, 1 on 4, 1, 2, 3, mean 3,
    # variance (3 * 1 + 4 + 1 + 0) / (6 - 1) = 1.6.
    scores, agents, episodes = (
        [2, 6, 4, 1, 2, 3],
        ["Main", "Main"] + ["Sub"] * 4,
        ["e", "f", "e", "f", "f", "f"],
    )
    advantages, weights = estimate(
        scores, agents, episodes, calls=3, norm_adv_by_std_in_grpo=True, epsilon=0.0
    )
    assert weights.tolist() == [1.0, 1.0, 3.0, 1.0, 1.0, 1.0]
    main, sub = 2**-0.5, 1.6**-0.5
    assert advantages.tolist() == pytest.approx([-main, main, sub, -2 * sub, -sub, 0.0])


def test_the_deviation_is_that_of_the_copies() -> None:
    # d calls brought to 5 each: e has 2, f 3 and g 7, of which two are left out.
    rng = np.random.default_rng(0)
    scores, episodes = rng.integers(0, 9, 12).astype(float).tolist(), ["e"] * 2 + ["f"] * 3 + ["g"] * 7
    advantages, weights = estimate(scores, ["Sub"] * 12, episodes, calls=5, norm_adv_by_std_in_grpo=True)
    drawn = [row for row, weight in enumerate(weights) for _ in range(int(weight))]
    assert len(drawn) == 15 and len(set(drawn)) == 10
    copies, copied_weights = estimate([scores[row] for row in drawn], ["Sub"] * 15, [f"{i}" for i in range(15)], 1,
                                      norm_adv_by_std_in_grpo=True)  # fmt: skip
    assert (copied_weights == 1).all()
    assert advantages[drawn].tolist() == pytest.approx(copies.tolist(), abs=1e-6)
    assert copies.std(correction=1) == pytest.approx(1.0, abs=1e-5)


def test_a_call_that_is_not_drawn_leaves_statistics_and_loss() -> None:
    scores = [float(2**i) for i in range(6)]
    advantages, weights = estimate(scores, ["Sub"] * 6, ["e"] * 5 + ["f"], calls=2)
    drawn = [s for s, w in zip(scores, weights, strict=True) for _ in range(int(w))]
    assert weights[:5].sum() == 2
    assert weights[5] == 2
    assert advantages.tolist() == pytest.approx(
        [(s - np.mean(drawn)) * (w > 0) for s, w in zip(scores, weights, strict=True)]
    )


def test_the_draw_depends_on_seed_episode_agent_and_call_alone() -> None:
    agents, episodes, turns = (
        text(["A", "B"] * 12),
        text([f"e{i // 8}" for i in range(24)]),
        np.arange(24) // 2 % 4,
    )
    candidates = np.zeros(24, dtype=np.int64)
    weights = aligned_calls(agents, episodes, turns, candidates, calls=2, seed=1)
    order = np.random.default_rng(0).permutation(24)
    assert (
        aligned_calls(agents[order], episodes[order], turns[order], candidates[order], calls=2, seed=1)
        == weights[order]
    ).all()
    some = episodes == "e1"
    assert (
        aligned_calls(agents[some], episodes[some], turns[some], candidates[some], calls=2, seed=1)
        == weights[some]
    ).all()
    others = [
        tuple(aligned_calls(agents, episodes, turns, candidates, calls=2, seed=seed)) for seed in range(20)
    ]
    assert len(set(others)) > 10


def test_every_call_is_drawn_as_often_as_any_other() -> None:
    episodes, turns = text([f"e{i // 5}" for i in range(5000)]), np.arange(5000) % 5
    weights = aligned_calls(
        text(["A"] * 5000), episodes, turns, np.zeros(5000, dtype=np.int64), calls=7, seed=0
    )
    # 7 = 1 * 5 + 2: each call counts once, and two of five once more; the mean of 1,000 such draws has a
    # standard error of 0.0155.
    assert [weights[turns == t].mean() for t in range(5)] == pytest.approx([1.4] * 5, abs=0.06)


def test_rows_without_a_token_are_not_drawn() -> None:
    rewards, mask = torch.tensor([[1.0], [9.0], [3.0]]), torch.tensor([[1], [0], [1]])
    advantages, _, weights = compute_m_grpo_outcome_advantage(
        rewards, mask, np.zeros(3), text(["Sub"] * 3), text(["e", "e", "f"]), np.array([0, 1, 0]),
        norm_adv_by_std_in_grpo=False, config=config(4),
    )  # fmt: skip
    assert weights.tolist() == [4.0, 0.0, 4.0]
    assert advantages[:, 0].tolist() == [-1.0, 0.0, 1.0]


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match="main_agent"):
        estimate([1.0], ["Sub"], ["e"], calls=1, config=config(1, main=None))
    with pytest.raises(ValueError, match="sub_calls=0"):
        estimate([1.0], ["Sub"], ["e"], calls=0)


def test_a_row_without_a_token_changes_nothing_in_the_draw_of_the_others() -> None:
    def weights(turns: list[int], lengths: list[int], seed: int) -> list[float]:
        count = len(turns)
        columns = {
            "uid": ["t"] * count,
            "traj_uid": ["e"] * count,
            "agent_id": ["Sub"] * count,
            "turn": turns,
        }
        mask = torch.tensor(lengths).unsqueeze(1)
        data = DataProto.from_dict(
            tensors={"response_mask": mask, "token_level_rewards": mask.float()},
            non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
        )
        algorithm = AlgorithmConfig(
            adv_estimator="m_grpo", m_grpo=MGRPOConfig(main_agent="Main", sub_calls=2)
        )
        return compute_advantage(data, "m_grpo", config=algorithm, seed=seed).batch["row_weights"].tolist()

    for seed in range(10):
        plain = weights([1, 2, 3, 4, 5], [1] * 5, seed)
        assert weights([0, 1, 2, 3, 4, 5], [0, *[1] * 5], seed) == [0.0, *plain]
        assert weights([1, 2, 2, 3, 4, 5], [1, 0, *[1] * 4], seed) == [plain[0], 0.0, *plain[1:]]
