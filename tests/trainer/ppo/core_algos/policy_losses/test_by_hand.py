"""One example of every policy loss, computed by hand: value, gradient where it tells more, metrics."""

import math
from typing import Any

import pytest
import torch

from verl.trainer.config import ActorConfig, RolloutCorrectionConfig
from verl.trainer.config.model import PolicyLossConfig
from verl.trainer.ppo.core_algos import (
    POLICY_LOSS_REGISTRY,
    compute_entropy_loss,
    compute_policy_loss,
    compute_policy_loss_reinforce,
    get_policy_loss_fn,
)
from verl.workers.engine.policy_update import LossConfig

Loss = tuple[float, list[list[float]], dict[str, float]]


def run(
    name: str,
    old: list,
    new: list,
    advantages: list,
    config: ActorConfig | None = None,
    mask: list | None = None,
    **kwargs: Any,
) -> Loss:
    """Loss, gradient of the log-probs and metrics; `old` and `new` are log-probs."""
    log_prob = torch.tensor(new, requires_grad=True)
    ones = torch.ones_like(log_prob).long() if mask is None else torch.tensor(mask)
    loss, metrics = get_policy_loss_fn(name)(
        torch.tensor(old),
        log_prob,
        torch.tensor(advantages),
        ones,
        config=ActorConfig() if config is None else config,
        **kwargs,
    )
    loss.backward()
    return loss.item(), log_prob.grad.tolist(), metrics


def test_gspo_clips_a_whole_reply() -> None:
    """Row 1: log-ratios 0.3 and 0.1, mean 0.2: s = e^0.2 = 1.2214 > 1.2, A = 1: clipped, loss -1.2 a token,
    no gradient.

    Row 2 (one token): log-ratio -0.1, s = e^-0.1, A = -2: loss 2 e^-0.1 (clip at 0.8 not reached), gradient 2
    e^-0.1 / 2 rows. seq-mean-token-mean: (-1.2 + 2 e^-0.1) / 2.
    """
    loss, gradient, metrics = run(
        "gspo",
        [[-1.0, -1.0], [-1.0, 0.0]],
        [[-0.7, -0.9], [-1.1, 5.0]],
        [[1.0, 1.0], [-2.0, 0.0]],
        mask=[[1, 1], [1, 0]],
    )
    assert loss == pytest.approx((-1.2 + 2 * math.exp(-0.1)) / 2)
    assert gradient == [[0.0, 0.0], [pytest.approx(math.exp(-0.1)), 0.0]]
    assert metrics == {
        "actor/pg_clipfrac": pytest.approx(2 / 3),
        "actor/ppo_kl": pytest.approx(-(0.3 + 0.1 - 0.1) / 3, abs=1e-7),
        "actor/pg_clipfrac_lower": 0.0,
    }


def test_gspo_averages_replies_whatever_the_aggregation_asked_for() -> None:
    """Ratios 1: row 1 (two tokens, A = 1): -1; row 2 (one token, A = -2): 2. Replies weigh the same: 1 / 2;
    tokens would give 0.
    """
    rows = [[0.0, 0.0], [0.0, 0.0]]
    for mode in ("token-mean", "seq-mean-token-sum"):
        assert run("gspo", rows, rows, [[1.0, 1.0], [-2.0, 0.0]], mask=[[1, 1], [1, 0]], loss_agg_mode=mode)[
            0
        ] == pytest.approx(0.5)


ALL_LOSSES = sorted(set(POLICY_LOSS_REGISTRY) - {"bypass_mode"})


@pytest.mark.parametrize("name", ALL_LOSSES)
@pytest.mark.parametrize(
    "wrong", ["old_log_prob", "log_prob", "advantages", "response_mask", "rollout_is_weights"]
)
def test_a_tensor_of_another_shape_is_named_instead_of_spread(name: str, wrong: str) -> None:
    tensors = {
        key: torch.zeros(3, 4) for key in ("old_log_prob", "log_prob", "advantages", "rollout_is_weights")
    }
    tensors["response_mask"] = torch.ones(3, 4)
    config = ActorConfig(policy_loss=PolicyLossConfig(dro_beta=1.0))
    get_policy_loss_fn(name)(**tensors, config=config)
    for part in (tensors[wrong][:1], tensors[wrong][:, :1], tensors[wrong][0]):
        if name == "gpg" and wrong == "old_log_prob":  # which it does not read
            continue
        with pytest.raises(
            ValueError,
            match=rf"{'log_prob' if wrong == 'response_mask' else wrong} .*response_mask.* differ in shape",
        ):
            get_policy_loss_fn(name)(**tensors | {wrong: part}, config=config)


@pytest.mark.parametrize("name", ["geo_mean", "gmpo"])
def test_gmpo_takes_the_geometric_mean_of_clipped_ratios(name: str) -> None:
    """Row 1, A = 2: log-ratios 0.5 -> clipped to 0.2, and 0.1: mean 0.15: -2 e^0.15.

    Row 2, A = -1: -0.5 -> clipped to -0.2 (the pessimistic side), 0.4 stays: mean 0.1: e^0.1. Row 3 is
    padding: mean over two rows.
    """
    mask = [[1, 1], [1, 1], [0, 0]]
    loss, gradient, metrics = run(
        name,
        [[0.0, 0.0]] * 3,
        [[0.5, 0.1], [-0.5, 0.4], [9.0, 9.0]],
        [[2.0, 2.0], [-1.0, -1.0], [3.0, 3.0]],
        mask=mask,
    )
    assert loss == pytest.approx((-2 * math.exp(0.15) + math.exp(0.1)) / 2)
    assert gradient[0] == [0.0, pytest.approx(-2 * math.exp(0.15) / 2 / 2)]
    assert gradient[2] == [0.0, 0.0]
    assert metrics["actor/pg_clipfrac"] == 0.25 and metrics["actor/pg_clipfrac_lower"] == 0.5


def test_gmpo_weighs_a_reply_with_the_geometric_mean_of_its_weights() -> None:
    """Weights 4 and 1: sqrt(4) = 2; ratios 1; A = 1: loss -2."""
    loss, _, _ = run(
        "geo_mean", [[0.0, 0.0]], [[0.0, 0.0]], [[1.0, 1.0]], rollout_is_weights=torch.tensor([[4.0, 1.0]])
    )
    assert loss == pytest.approx(-2.0)


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    """Token 1: r = 2 -> weight 1.2, log_prob -0.5, A = 1: 0.6, gradient -0.6. Token 2: r = 1, log_prob -1, A
    = -1: -1, gradient 1 / 2.
    """
    loss, gradient, metrics = run("cispo", [[-0.5 - math.log(2), -1.0]], [[-0.5, -1.0]], [[1.0, -1.0]])
    assert loss == pytest.approx((0.6 - 1.0) / 2)
    assert gradient == [[pytest.approx(-0.6), pytest.approx(0.5)]]
    assert metrics["actor/pg_clipfrac"] == 0.5


def test_gpg_is_the_plain_policy_gradient() -> None:
    """(2 * 0.5 + (-1) * 1.5) / 2 with losses -A log_prob."""
    loss, gradient, metrics = run("gpg", [[9.0, 9.0]], [[-0.5, -1.5]], [[2.0, -1.0]])
    assert loss == pytest.approx((1.0 - 1.5) / 2)
    assert gradient == [[-1.0, 0.5]] and metrics == {}


def test_sapo_fades_tokens_out() -> None:
    """At r = 1 the gate is 4 / tau * 1/2 = 2 / tau and its slope 1: gradient -A.

    Row 1: A = 1, tau 1: -2. Row 2: A = -1, tau 2, r = 2: gate 2 sigmoid(2): loss 2 sigmoid(2), slope 4 s (1 -
    s) r.
    """
    loss, gradient, metrics = run(
        "sapo",
        [[-1.0], [-1.0]],
        [[-1.0], [-1.0 + math.log(2)]],
        [[1.0], [-1.0]],
        ActorConfig(tau_pos=1.0, tau_neg=2.0),
    )
    s = 1 / (1 + math.exp(-2.0))
    assert loss == pytest.approx((-2.0 + 2 * s) / 2)
    assert gradient == [[pytest.approx(-0.5)], [pytest.approx(4 * s * (1 - s) * 2 / 2)]]
    assert metrics["actor/ppo_kl"] == pytest.approx(-math.log(2) / 2)


def test_dppo_tv_masks_by_the_change_of_the_probability() -> None:
    """Bounds 0.2, c = 3. Tokens (A, p_old -> p): (1, .5 -> .8) moved .3: out. (1, .01 -> .05) ratio 5 -> 3,
    stays.

    (-1, .5 -> .2) out. (-1, .5 -> .9) moved up against A < 0: stays, ratio 1.8. Losses -A min(r, 3) log p.
    """
    old, new = [[0.5, 0.01, 0.5, 0.5]], [[0.8, 0.05, 0.2, 0.9]]
    logs = [[[math.log(p) for p in row] for row in x] for x in (old, new)]
    for name in ("dppo_tv", "dppo"):
        loss, gradient, metrics = run(name, logs[0], logs[1], [[1.0, 1.0, -1.0, -1.0]])
        assert loss == pytest.approx((-3 * math.log(0.05) + 1.8 * math.log(0.9)) / 4, rel=1e-5)
        assert gradient == [[0.0, pytest.approx(-0.75), 0.0, pytest.approx(0.45)]]
        assert metrics["actor/pg_clipfrac"] == 0.5 and metrics["actor/pg_clipfrac_lower"] == 0.25


def test_dppo_kl_masks_by_the_binary_kl() -> None:
    """Bound 0.1. D(.5 || .8) = .5 ln(.5/.8) + .5 ln(.5/.2) = 0.2231: out where A > 0; D(.5 || .6) = 0.0204:
    stays.

    Where p moved the way that A < 0 does not push, it stays: A = -1, .5 -> .8.
    """
    logs = [[math.log(0.5)] * 3], [[math.log(0.8), math.log(0.6), math.log(0.8)]]
    loss, gradient, metrics = run(
        "dppo_kl", *logs, [[1.0, 1.0, -1.0]], ActorConfig(clip_ratio_low=0.1, clip_ratio_high=0.1)
    )
    assert loss == pytest.approx((-1.2 * math.log(0.6) + 1.6 * math.log(0.8)) / 3, rel=1e-5)
    assert gradient == [[0.0, pytest.approx(-0.4), pytest.approx(1.6 / 3)]]
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 3)


def test_dro_pulls_back_by_the_squared_log_ratio() -> None:
    """beta 0.5, A = 2, log_prob -1, old -1.4: 0.25 * 0.16 + 2 = 2.04; gradient 0.5 * 0.4 - 2."""
    config = ActorConfig(policy_loss=PolicyLossConfig(dro_beta=0.5))
    loss, gradient, metrics = run("dro", [[-1.4]], [[-1.0]], [[2.0]], config)
    assert loss == pytest.approx(2.04) and gradient == [[pytest.approx(-1.8)]]
    assert metrics == {"actor/ppo_kl": pytest.approx(-0.4)}


# Four tokens, A = 3, 1, -1, -3 (mean 0), log-probs -1, -3, -1, -3 (mean -2): covariances 3, -1, -1, 3.
COV_OLD, COV_A = [[-1.0, -3.0], [-1.0, -3.0]], [[3.0, 1.0], [-1.0, -3.0]]


def test_clip_cov_is_the_expectation_of_the_draw() -> None:
    """Band 1..5: tokens 1 and 4 (covariance 3). A share of 0.25 draws one of four tokens: q = 1/2 for both.

    Ratios 1: losses -A (1 - q): -1.5, -1, 1, 1.5: mean 0; gradients the same / 4. A share of 1 draws both: q
    = 1.
    """
    config = ActorConfig(policy_loss=PolicyLossConfig(clip_cov_ratio=0.25))
    loss, gradient, metrics = run("clip_cov", COV_OLD, COV_OLD, COV_A, config)
    assert loss == pytest.approx(0.0, abs=1e-7)
    assert gradient == [[-0.375, -0.25], [0.25, 0.375]]
    assert metrics["actor/pg_clipfrac"] == 0.25
    config = ActorConfig(policy_loss=PolicyLossConfig(clip_cov_ratio=1.0))
    assert run("clip_cov", COV_OLD, COV_OLD, COV_A, config)[1] == [[0.0, -0.25], [0.25, 0.0]]


def test_clip_cov_never_draws_what_ppo_clips() -> None:
    """Token 1 has ratio e > 1.2 with A > 0: clipped, loss -3.6; the one place goes to token 4, which is then
    left out whole.

    Log-probs 0, -3, -1, -3: mean -1.75; covariances 5.25 (clipped), -1.25, -0.75, 3.75.
    """
    config = ActorConfig(policy_loss=PolicyLossConfig(clip_cov_ratio=0.25, clip_cov_ub=6.0))
    loss, gradient, _ = run("clip_cov", COV_OLD, [[0.0, -3.0], [-1.0, -3.0]], COV_A, config)
    assert loss == pytest.approx((-3.6 - 1.0 + 1.0) / 4)
    assert gradient == [[0.0, -0.25], [0.25, 0.0]]


def test_kl_cov_charges_the_tokens_of_largest_covariance() -> None:
    """New log-probs -0.9, -3.1, -0.9, -3.1: mean -2, covariances 3.3, -1.1, -1.1, 3.3; |log r| = 0.1 each.

    Half of the tokens pay 0.5 * 0.1: tokens 1 and 4. Losses -A e^(+-0.1) (+ 0.05).
    """
    new = [[-0.9, -3.1], [-0.9, -3.1]]
    config = ActorConfig(policy_loss=PolicyLossConfig(kl_cov_ratio=0.5, ppo_kl_coef=0.5))
    loss, gradient, metrics = run("kl_cov", COV_OLD, new, COV_A, config)
    up, down = math.exp(0.1), math.exp(-0.1)
    assert loss == pytest.approx((-3 * up - down + up + 3 * down + 2 * 0.05) / 4, rel=1e-5)
    expected = [(-3 * up + 0.5) / 4, -down / 4, up / 4, (3 * down - 0.5) / 4]
    assert [*gradient[0], *gradient[1]] == pytest.approx(expected, rel=1e-5)
    assert metrics == {"actor/ppo_kl": pytest.approx(0.1)}


def test_kl_cov_shares_the_last_place_between_equal_tokens() -> None:
    """Log-ratios +-0.25, covariances 3.75 for tokens 1 and 4, which are equal to the bit: one place, each
    pays half.
    """
    config = ActorConfig(policy_loss=PolicyLossConfig(kl_cov_ratio=0.25, ppo_kl_coef=0.5))
    _, gradient, _ = run("kl_cov", COV_OLD, [[-0.75, -3.25], [-0.75, -3.25]], COV_A, config)
    assert gradient[0][0] == pytest.approx((-3 * math.exp(0.25) + 0.25) / 4, rel=1e-5)
    assert gradient[1][1] == pytest.approx((3 * math.exp(-0.25) - 0.25) / 4, rel=1e-5)


def test_reinforce_weighs_the_policy_gradient() -> None:
    """-1 * -0.5 * 2 + -(-1) * -1.5 * 0.5 = 1 - 0.75, summed over the row."""
    log_prob = torch.tensor([[-0.5, -1.5]])
    loss, metrics = compute_policy_loss_reinforce(
        torch.tensor([[-1.0, -1.5]]), log_prob, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2),
        config=ActorConfig(),
        rollout_is_weights=torch.tensor([[2.0, 0.5]]),
    )  # fmt: skip
    assert loss.item() == pytest.approx(0.25)
    assert metrics == {"actor/ppo_kl": pytest.approx(-0.25)}


def bypass(**correction: Any) -> LossConfig:
    return LossConfig(rollout_correction=RolloutCorrectionConfig(bypass_mode=True, **correction))


def test_bypass_rejects_tokens_before_it_clips() -> None:
    """Ratios 1.1, 4, 0.5 with A = 1; rejection keeps 1/2..2: tokens 1 and 3: (-1.1 - 0.5) / 2."""
    new = [[math.log(1.1), math.log(4.0), math.log(0.5)]]
    config = bypass(rollout_rs="token_k1", rollout_rs_threshold="0.4_2.0")
    loss, gradient, metrics = run("bypass_mode", [[0.0, 0.0, 0.0]], new, [[1.0, 1.0, 1.0]], config)
    assert loss == pytest.approx(-0.8)
    assert gradient == [[pytest.approx(-0.55), 0.0, pytest.approx(-0.25)]]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 3)


def test_bypass_reinforce_truncates_the_weights() -> None:
    """Ratios 4 -> 2 and 0.5, log-probs -0.5 and -1, A = 1: (2 * 0.5 + 0.5 * 1) / 2; normalised weights 1.6
    and 0.4.
    """
    old, new = [[-0.5 - math.log(4.0), -1.0 + math.log(2.0)]], [[-0.5, -1.0]]
    config = bypass(loss_type="reinforce", rollout_is="token", rollout_is_threshold=2.0)
    assert run("bypass_mode", old, new, [[1.0, 1.0]], config)[0] == pytest.approx(0.75)
    config = bypass(
        loss_type="reinforce", rollout_is="token", rollout_is_threshold=2.0, rollout_is_batch_normalize=True
    )
    assert run("bypass_mode", old, new, [[1.0, 1.0]], config)[0] == pytest.approx((1.6 * 0.5 + 0.4) / 2)


def test_bypass_masks_by_m2po() -> None:
    """Log-ratios 0.1 and 1: tau 0.04 keeps the first alone, whose loss is -e^0.1."""
    loss, gradient, _ = run("bypass_mode", [[0.0, 0.0]], [[0.1, 1.0]], [[1.0, 1.0]], bypass(m2po_tau=0.04))
    assert loss == pytest.approx(-math.exp(0.1)) and gradient[0][1] == 0.0


def test_the_older_signature_gives_loss_and_shares() -> None:
    """r = 1.5, A = 1: clipped at 1.2. r = 4, A = -1: dual clip at 3. Loss (-1.2 + 3) / 2."""
    new = torch.tensor([[math.log(1.5), math.log(4.0)]])
    advantages = torch.tensor([[1.0, -1.0]])
    loss, clipped, kl, lower = compute_policy_loss(
        torch.zeros(1, 2), new, advantages, torch.ones(1, 2), cliprange=0.2
    )
    assert loss.item() == pytest.approx(0.9)
    assert (clipped.item(), lower.item()) == (0.5, 0.5)
    assert kl.item() == pytest.approx(-math.log(6.0) / 2)
    with pytest.raises(ValueError, match="cliprange"):
        compute_policy_loss(torch.zeros(1, 2), new, advantages, torch.ones(1, 2), cliprange_low=0.2)


def test_entropy_of_a_fair_and_of_a_sure_choice() -> None:
    """ln 2 and 0, the third token masked."""
    logits = torch.tensor([[[0.0, 0.0], [100.0, -torch.inf], [3.0, 1.0]]])
    assert compute_entropy_loss(logits, torch.tensor([[1, 1, 0]])).item() == pytest.approx(math.log(2) / 2)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gspo", None, "needs config"),
        ("gpg", None, "needs config"),
        ("dro", ActorConfig(), "dro_beta"),
        ("sapo", ActorConfig(tau_neg=0.0), "tau_neg"),
        ("clip_cov", ActorConfig(policy_loss=PolicyLossConfig(clip_cov_ratio=0.0)), "clip_cov_ratio"),
        ("kl_cov", ActorConfig(policy_loss=PolicyLossConfig(kl_cov_ratio=-1.0)), "kl_cov_ratio"),
        ("bypass_mode", ActorConfig(), "rollout_correction"),
        ("bypass_mode", bypass(loss_type="other"), "loss_type"),
    ],
)
def test_a_config_that_cannot_work_names_the_key(name: str, config: ActorConfig | None, message: str) -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=message):
        get_policy_loss_fn(name)(one, one, one, one, config=config)
