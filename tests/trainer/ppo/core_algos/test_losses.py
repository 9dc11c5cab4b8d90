"""Aggregation, the clipped loss and KL by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from verl.trainer.ppo.core_algos import (
    agg_loss,
    compute_policy_loss_vanilla,
    get_adv_estimator_fn,
    get_kl_controller,
    get_policy_loss_fn,
    kl_penalty,
    masked_mean,
    register_adv_est,
    register_policy_loss,
)
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES

LOSS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 18 / 5),
        ("seq-mean-token-sum", (3 + 15) / 2),
        ("seq-mean-token-mean", (1.5 + 5) / 2),
        ("seq-mean-token-sum-norm", (3 + 15) / 2 / 3),
    ],
)
def test_aggregation_by_hand_and_padding_rows_weigh_nothing(mode: str, expected: float) -> None:
    assert agg_loss(LOSS, MASK, mode).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_micro_batches_on_ranks_add_up_to_the_whole(mode: str) -> None:
    """Two ranks (gradients averaged), one of them with two micro-batches, one micro-batch without a
    real row.
    """
    counts = {"batch_num_tokens": 5, "global_batch_size": 2, "loss_scale_factor": 7}
    whole = agg_loss(LOSS, MASK, mode, **counts)
    rank0 = agg_loss(LOSS[:1], MASK[:1], mode, dp_size=2, **counts) + agg_loss(
        LOSS[2:], MASK[2:], mode, dp_size=2, **counts
    )
    rank1 = agg_loss(LOSS[1:2], MASK[1:2], mode, dp_size=2, **counts)
    assert ((rank0 + rank1) / 2).item() == pytest.approx(whole.item())


def test_masked_values_may_be_anything() -> None:
    loss = LOSS.clone()
    loss[0, 2], loss[2] = float("nan"), float("inf")
    for mode in LOSS_AGG_MODES:
        assert math.isfinite(agg_loss(loss, MASK, mode).item())
    assert masked_mean(loss, MASK).item() == pytest.approx(18 / 5)
    assert masked_mean(loss, torch.zeros_like(MASK)).item() == 0.0


def test_shapes_that_torch_would_spread_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loss_mat .*differ in shape"):
        agg_loss(LOSS, MASK[:, :1], "token-mean")
    for kind in ("k1", "abs", "k2", "k3", "k1+"):
        with pytest.raises(ValueError, match=r"ref_logprob .*differ in shape"):
            kl_penalty(LOSS, LOSS[:1], kind)


def test_aggregation_refuses_what_it_cannot_normalise() -> None:
    with pytest.raises(ValueError, match="batch_num_tokens"):
        agg_loss(LOSS, MASK, "token-mean", dp_size=2)
    with pytest.raises(ValueError, match="token-mean"):
        agg_loss(LOSS, MASK, "mean")


def config(**changes) -> SimpleNamespace:
    base = {
        "clip_ratio": 0.2,
        "clip_ratio_low": None,
        "clip_ratio_high": None,
        "clip_ratio_c": 3.0,
        "global_batch_info": {},
    }
    return SimpleNamespace(**(base | changes))


@pytest.mark.parametrize(
    ("ratio", "advantage", "changes", "expected"),
    [
        (1.0, 2.0, {}, -2.0),
        (1.5, 1.0, {}, -1.2),
        (1.5, 1.0, {"clip_ratio_high": 0.28}, -1.28),
        (0.5, 1.0, {}, -0.5),
        (0.5, -1.0, {}, 0.8),
        (0.5, -1.0, {"clip_ratio_low": 0.4}, 0.6),
        (2.0, -1.0, {}, 2.0),
        (5.0, -1.0, {}, 3.0),
    ],
)
def test_vanilla_loss_by_hand(ratio: float, advantage: float, changes: dict, expected: float) -> None:
    old, new = torch.zeros(1, 1), torch.full((1, 1), math.log(ratio))
    loss, metrics = compute_policy_loss_vanilla(
        old, new, torch.full((1, 1), advantage), torch.ones(1, 1), config=config(**changes)
    )
    assert loss.item() == pytest.approx(expected)
    assert metrics["actor/ppo_kl"] == pytest.approx(-math.log(ratio))
    assert metrics["actor/pg_clipfrac_lower"] == float(expected == 3.0)


def test_importance_weights_scale_the_loss_and_far_ratios_stay_finite() -> None:
    old, new, ones = torch.zeros(1, 2), torch.tensor([[0.0, 100.0]]), torch.ones(1, 2)
    loss, _ = compute_policy_loss_vanilla(
        old, new, ones, ones, config=config(), rollout_is_weights=torch.tensor([[0.5, 0.0]])
    )
    assert loss.item() == pytest.approx(-0.25)
    assert math.isfinite(compute_policy_loss_vanilla(old, new, -ones, ones, config=config())[0].item())
    with pytest.raises(ValueError, match="clip_ratio_c"):
        compute_policy_loss_vanilla(old, new, ones, ones, config=config(clip_ratio_c=1.0))


def test_kl_estimators_by_hand() -> None:
    log_prob, ref = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert kl_penalty(log_prob, ref, "kl").item() == pytest.approx(0.5)
    assert kl_penalty(ref, log_prob, "abs").item() == pytest.approx(0.5)
    assert kl_penalty(log_prob, ref, "mse").item() == pytest.approx(0.125)
    assert kl_penalty(log_prob, ref, "low_var_kl").item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    with pytest.raises(ValueError, match="low_var_kl"):
        kl_penalty(log_prob, ref, "k9")


@pytest.mark.parametrize("kind", ["low_var_kl", "k3"])
def test_k3_is_at_most_10_and_far_tokens_have_no_gradient_instead_of_nan(kind: str) -> None:
    """e^x - 1 - x at x = 4 is 49.6: cut to 10. At x = 200 the exponential overflows, so x is cut to 20 before
    it is taken.
    """
    log_prob = torch.tensor([-1.0, -5.0, -201.0, -1.0], requires_grad=True)
    value = kl_penalty(log_prob, torch.tensor([-1.5, -1.0, -1.0, -201.0]), kind)
    value.sum().backward()
    assert value.tolist() == pytest.approx([math.exp(-0.5) + 0.5 - 1, 10.0, 10.0, 10.0])
    assert log_prob.grad.tolist() == pytest.approx([1 - math.exp(-0.5), 0.0, 0.0, 0.0])


def test_straight_through_kl_has_the_value_of_one_and_the_gradient_of_k2() -> None:
    log_prob = torch.tensor([-1.0], requires_grad=True)
    value = kl_penalty(log_prob, torch.tensor([-1.5]), "k1+")
    value.sum().backward()
    assert value.item() == pytest.approx(0.5)
    assert log_prob.grad.item() == pytest.approx(0.5)


def test_kl_controllers() -> None:
    fixed = get_kl_controller(SimpleNamespace(type="fixed", kl_coef=0.1))
    fixed.update(10.0, 100)
    assert fixed.value == 0.1
    adaptive = get_kl_controller(SimpleNamespace(type="adaptive", kl_coef=0.1, target_kl=1.0, horizon=100))
    adaptive.update(5.0, 10)
    assert adaptive.value == pytest.approx(0.1 * 1.02)
    with pytest.raises(AssertionError):
        get_kl_controller(SimpleNamespace(type="adaptive", kl_coef=0.1, target_kl=1.0, horizon=0))
    with pytest.raises(NotImplementedError):
        get_kl_controller(SimpleNamespace(type="other"))


def test_users_add_their_own_and_unknown_names_list_the_known() -> None:
    @register_adv_est("test_mine")
    def mine() -> None:
        """Nothing."""

    @register_policy_loss("test_mine")
    def mine_loss() -> None:
        """Nothing."""

    assert get_adv_estimator_fn("test_mine") is mine
    assert get_policy_loss_fn("test_mine") is mine_loss
    with pytest.raises(ValueError, match="grpo"):
        get_adv_estimator_fn("grop")
    with pytest.raises(ValueError, match="already"):
        register_adv_est("grpo")(mine)
    with pytest.raises(ValueError, match="already"):
        register_policy_loss("vanilla")(mine_loss)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (0.5 * 3 + 2 * 15) / (0.5 * 2 + 2 * 3)),
        ("token-sum", 0.5 * 3 + 2 * 15),
        ("seq-mean-token-sum", (0.5 * 3 + 2 * 15) / 2.5),
        ("seq-mean-token-mean", (0.5 * 1.5 + 2 * 5) / 2.5),
        ("seq-mean-token-sum-norm", (0.5 * 3 + 2 * 15) / 2.5 / 3),
    ],
)
def test_row_weights_by_hand(mode: str, expected: float) -> None:
    """Rows weigh 1/2, 2 and 5; the third is padding. In token-mean a token has the weight of its row."""
    assert agg_loss(LOSS, MASK, mode, row_weights=torch.tensor([0.5, 2.0, 5.0])).item() == pytest.approx(
        expected
    )


def test_row_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="one weight per row"):
        agg_loss(LOSS, MASK, "token-mean", row_weights=torch.ones(2))
