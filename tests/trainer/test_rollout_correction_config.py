"""verl's named combinations, and when a correction is due."""

from __future__ import annotations

import pytest

from verl.trainer.config import RolloutCorrectionConfig as Config


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Config.disabled(), Config()),
        (Config.decoupled_token_is(3.0), Config(rollout_is="token", rollout_is_threshold=3.0)),
        (
            Config.decoupled_token_icepop(4.0, threshold_lower=0.25),
            Config(rollout_is="token", rollout_is_threshold="0.25_4.0"),
        ),
        (
            Config.decoupled_seq_is_rs(),
            Config(rollout_is="sequence", rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0"),
        ),
        (
            Config.decoupled_geo_rs_token_tis(1.5, "0.9_1.1"),
            Config(
                rollout_is="token",
                rollout_is_threshold=1.5,
                rollout_rs="seq_mean_k1",
                rollout_rs_threshold="0.9_1.1",
            ),
        ),
        (
            Config.bypass_ppo_clip_k3_rs(rs_threshold=0.1),
            Config(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.1, bypass_mode=True),
        ),
        (Config.bypass_pg_is(), Config(rollout_is="sequence", bypass_mode=True, loss_type="reinforce")),
    ],
)
def test_a_named_combination_sets_the_keys_it_stands_for(made: Config, expected: Config) -> None:
    assert made == expected


def test_an_argument_that_a_combination_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError):
        Config.decoupled_k3_rs(threshold=2.0)


def test_the_batch_is_corrected_before_the_advantages_unless_the_loss_does_it() -> None:
    assert not Config().corrects_batch
    assert all(
        c.corrects_batch
        for c in (Config(rollout_is="token"), Config.decoupled_k3_rs(), Config(m2po_tau=0.04))
    )
    assert not Config.bypass_pg_is().corrects_batch
