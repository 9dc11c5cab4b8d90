"""GDPO: every reward normalised on its own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_gdpo_outcome_advantage as gdpo


def config(keys: list[str] | None, weights: list[float] | None = None) -> SimpleNamespace:
    return SimpleNamespace(gdpo_reward_keys=keys, gdpo_reward_weights=weights, singleton="zero")


COLUMNS = {"right": np.array([0.0, 2.0, 4.0], dtype=object), "tidy": np.array([0.0, 0.0, 3e-3], dtype=object)}


def test_by_hand(rows) -> None:
    # right: mean 2, std 2: -1, 0, 1.  tidy (in thousandths): mean 1, std sqrt(3): -1, -1, 2 over sqrt(3),
    # however small its scale. The sum with weights 1 and 1/2, whitened over one token a row: its mean is 0.
    total = np.array([-1, 0, 1]) + 0.5 * np.array([-1, -1, 2]) / 3**0.5
    rewards, mask = rows([0.0, 0.0, 0.0], width=1)
    arguments = {"config": config(["right", "tidy"], [1.0, 0.5]), "non_tensor_batch": COLUMNS, "epsilon": 0.0}
    advantages, returns = gdpo(rewards, mask, np.zeros(3), **arguments)
    assert advantages[:, 0].tolist() == pytest.approx(list(total / total.std(ddof=1)), abs=1e-6)
    assert advantages is returns


def test_without_columns_it_is_whitened_grpo(rows) -> None:
    # GRPO: -1, 0, 1 on 2, 1, 1 tokens: mean -0.25, variance ((2 * 0.5625) + 0.0625 + 1.5625) / 3
    rewards, mask = rows([0.0, 2.0, 4.0], [2, 1, 1], width=2)
    advantages, _ = gdpo(rewards, mask, np.zeros(3), epsilon=0.0)
    std = (2.75 / 3) ** 0.5
    # the middle row is moved like any other
    assert advantages[:, 0].tolist() == pytest.approx([-0.75 / std, 0.25 / std, 1.25 / std])


def test_rows_for_which_no_reward_speaks_stay_zero(rows) -> None:
    rewards, mask = rows([0.0] * 5, [3, 1, 2, 2, 0])
    columns = {"a": np.array([0.0, 1.0, 0.1, 0.1, np.nan]), "b": np.array([1.0, 0.5, 0.2, 0.2, 7.0])}
    advantages, _ = gdpo(
        rewards,
        mask,
        np.array([0, 0, 1, 1, 0]),
        config=config(["a", "b"], [1.0, 2.0]),
        non_tensor_batch=columns,
    )
    assert (advantages[2:] == 0).all()
    assert (advantages[:2, 0] != 0).all()


def test_rewards_that_cancel_out_are_whitened_like_any_other(rows) -> None:
    # a: -1, 1 over sqrt(2); b: 1, -1 over sqrt(2): the first group's sum is 0, but both rewards spoke. Second
    # group: -2, 2 over sqrt(2).
    rewards, mask = rows([0.0] * 4, [1, 1, 3, 1])
    columns = {"a": np.array([0.0, 1.0, 0.0, 1.0]), "b": np.array([1.0, 0.0, 0.0, 1.0])}
    arguments = {"config": config(["a", "b"]), "non_tensor_batch": columns, "epsilon": 0.0}
    advantages, _ = gdpo(rewards, mask, np.array([0, 0, 1, 1]), **arguments)
    tokens = np.array([0.0, 0.0, -2, -2, -2, 2]) / 2**0.5
    expected = (tokens - tokens.mean()) / tokens.std(ddof=1)
    assert advantages[mask.bool()].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_policies_are_whitened_apart(rows) -> None:
    rewards, mask = rows([0.0, 2.0, 5.0, 5.5], [3, 1, 2, 3])
    policy = np.array(["a", "a", "b", "b"], dtype=object)
    whole, _ = gdpo(rewards, mask, policy, policy_index=policy)
    assert torch.equal(whole[:2], gdpo(rewards[:2], mask[:2], policy[:2])[0])


def test_bad_input_is_named(rows) -> None:
    rewards, mask = rows([1.0, 2.0, 3.0])
    for keys, weights, message in [
        (None, None, r"needs algorithm\.gdpo_reward_keys"),
        (["right", "style"], None, r"gdpo_reward_keys names \['style'\]"),
        (["right"], [1.0, 2.0], r"gdpo_reward_weights has 2 entries for 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            gdpo(rewards, mask, np.zeros(3), config=config(keys, weights), non_tensor_batch=COLUMNS)
    with pytest.raises(ValueError, match="tidy: 1 of 3 rows are not finite"):
        gdpo(
            rewards,
            mask,
            np.zeros(3),
            config=config(["tidy"]),
            non_tensor_batch={"tidy": np.array([0.0, np.nan, 1.0])},
        )
