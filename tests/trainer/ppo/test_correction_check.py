"""A correction that cannot work stops the run before anything is loaded."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.plans import plan_of
from verl.trainer.config import RolloutCorrectionConfig, RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import check_rollout_correction, resolve
from verl.trainer.ppo.asynchronous.check_keys import check_async_training


def check(model: Path, **keys: Any) -> None:
    """Check as a run does, with these keys of the correction."""
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(model)
    config.algorithm.rollout_correction = RolloutCorrectionConfig(**keys)
    resolve(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rollout_is": "turn"}, r"rollout_is='turn'.*token, sequence"),
        (
            {"rollout_is": "token", "rollout_is_threshold": "2_1"},
            "rollout_is_threshold='2_1': the lower bound 2 is above the upper 1",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "much"},
            "rollout_is_threshold='much': expected a number",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": None},
            "rollout_is_threshold=None: expected float or str",
        ),
        ({"rollout_rs": "token_k9", "rollout_rs_threshold": 1.0}, "rollout_rs='token_k9'.*seq_max_k3"),
        ({"rollout_rs": "token_k1"}, "rollout_rs_threshold must be provided"),
        (
            {"rollout_rs": "token_k1,token_k3", "rollout_rs_threshold": "1,2,3"},
            "rollout_rs_threshold=.*has 3 bounds; expected one, or 2",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "1.5_5"},
            "rollout_is_threshold=1.5_5 excludes 1, .*lower bound of at most 1",
        ),
        (
            {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_0.9"},
            r"rollout_rs_threshold \(seq_mean_k1\)=0.5_0.9 excludes 1",
        ),
        ({"m2po_tau": 0.0}, "m2po_tau=0.0: expected above 0"),
        ({"bypass_mode": True, "loss_type": "a2c"}, "loss_type='a2c': expected one of ppo_clip, reinforce"),
        (
            {"bypass_mode": True, "rollout_is": "token"},
            r"rollout_is=token has no effect.*loss_type=reinforce",
        ),
        ({"rollout_rs_threshold": 2.0}, "rollout_rs_threshold=2.0 has no effect.*rollout_rs"),
        ({"rollout_is_threshold": 3.0}, "rollout_is_threshold=3.0 has no effect.*rollout_is"),
        ({"loss_type": "reinforce"}, "loss_type=reinforce has no effect.*bypass_mode=true"),
    ],
)
def test_keys_that_mean_nothing_are_named(tiny_model_dir: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.rollout_correction.{message}"):
        check(tiny_model_dir, **keys)


def test_every_combination_that_verl_names_is_accepted(tiny_model_dir: Path) -> None:
    names = [name for name, value in vars(RolloutCorrectionConfig).items() if isinstance(value, classmethod)]
    assert len(names) == 19
    for name in names:
        check(tiny_model_dir, **vars(getattr(RolloutCorrectionConfig, name)()))


@pytest.mark.parametrize(
    ("mode", "staleness", "epochs", "mini", "steps"),
    [
        ("fully_async", 1.0, 2, 0, 2),
        ("one_step_off", 1.0, 1, 2, 4),
        ("fully_async", 0.0, 2, 0, 0),
        ("sync", 1.0, 2, 0, 0),
        ("fully_async", 1.0, 1, 0, 0),
    ],
)
def test_several_optimizer_steps_on_older_samples_are_warned_of_in_one_line(
    tiny_model_dir: Path,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    staleness: float,
    epochs: int,
    mini: int,
    steps: int,
) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.algorithm.rollout_correction.rollout_is = "token"
    config.async_training.mode, config.async_training.staleness_threshold = mode, staleness
    config.data.train_batch_size = 8
    config.actor_rollout_ref.actor.ppo_epochs, config.actor_rollout_ref.actor.ppo_mini_batch_size = (
        epochs,
        mini,
    )
    with caplog.at_level(logging.WARNING, logger="verl"):
        check_async_training(config, plan_of(config))
    said = [record.getMessage() for record in caplog.records]
    assert [f"makes {steps} optimizer steps a batch" in line for line in said] == [True] * (steps > 0)


@pytest.mark.parametrize(
    ("quantile", "least", "metric", "mode", "said"),
    [
        (0.2, 0.0, "seq_reward", "fully_async", "its theta_quantile=0.2 the seq_reward that"),
        (None, 0.8, "team_reward", "fully_async", "its min_pass_rate=0.8 the team_reward that"),
        (
            0.2,
            0.8,
            "mixed_reward",
            "fully_async",
            "its theta_quantile=0.2 and min_pass_rate=0.8 the mixed_reward that",
        ),
        (None, 0.0, "seq_reward", "fully_async", None),
        (0.2, 0.8, "local_reward", "fully_async", None),
        (0.2, 0.8, "seq_reward", "one_step_off", None),
    ],
)
def test_dynamic_sampling_by_rewards_that_depend_on_other_groups_is_refused_where_groups_end_one_by_one(
    tiny_model_dir: Path, quantile: float | None, least: float, metric: str, mode: str, said: str | None
) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path, config.async_training.mode = str(tiny_model_dir), mode
    config.algorithm.rollout_correction.rollout_is = "token"
    config.algorithm.filter_groups.metric = metric
    config.reward.propagation.mode = "threshold"
    config.reward.propagation.theta_quantile, config.reward.propagation.min_pass_rate = quantile, least
    with nullcontext() if said is None else pytest.raises(ConfigError, match=said):
        resolve(config)


@pytest.mark.parametrize(
    ("lead", "changes", "most"),
    [
        (2, {}, 1),
        (2, {"staleness_threshold": 1.9}, 1),
        (2, {"staleness_threshold": 2.0}, None),
        (2, {"staleness_threshold": 0.5, "trigger_parameter_sync_step": 2}, None),
        (
            3,
            {"staleness_threshold": 3.0, "max_off_policy_threshold": 2, "max_off_policy_strategy": "drop"},
            2,
        ),
        (2, {"batch_timeout_s": 5.0, "max_off_policy_threshold": 1}, 1),
        (4, {"batch_timeout_s": 5.0}, None),
        (1, {"staleness_threshold": 0.0}, None),
        (2, {"per_policy": {"solver_agent": {"staleness_threshold": 2.0}}}, None),
    ],
)
def test_a_lead_for_which_no_groups_are_sampled_is_refused(
    tiny_model_dir: Path, lead: int, changes: dict[str, Any], most: int | None
) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path, config.async_training.mode = str(tiny_model_dir), "fully_async"
    config.algorithm.rollout_correction.rollout_is = "token"
    config.algorithm.group_by = ["uid", "agent_id"]
    config.async_training.max_lead = lead
    vars(config.async_training).update(changes)
    with (
        nullcontext()
        if most is None
        else pytest.raises(
            ConfigError, match=f"max_lead={lead} has no effect beyond {most}: .* at most {most}, or"
        )
    ):
        resolve(config)


def test_truncated_sampling_is_warned_of_once(tiny_model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.actor_rollout_ref.rollout.top_p = 0.9
    with caplog.at_level(logging.WARNING, logger="verl"):
        check_rollout_correction(config.algorithm, config.async_training, config.gateway, plan_of(config))
    (record,) = caplog.records
    assert all(name in record.getMessage() for name in ("top_p", *config.agent.agent_ids))


@pytest.mark.parametrize(
    ("loss", "key", "value", "message"),
    [
        (
            "dro",
            "policy_loss.dro_beta",
            None,
            r"dro_beta=None \(agent 'Solver Agent'\): the loss dro needs a positive number",
        ),
        (
            "clip_cov",
            "policy_loss.clip_cov_ratio",
            0.0,
            "clip_cov_ratio=0.0 .*clip_cov needs a positive number",
        ),
        ("kl_cov", "policy_loss.kl_cov_ratio", -1.0, "kl_cov_ratio=-1.0 .*kl_cov needs a positive number"),
        ("sapo", "tau_neg", 0.0, "tau_neg=0.0 .*sapo needs a positive number"),
        (
            "bypass_mode",
            "clip_ratio_low",
            0.2,
            r"loss_mode=bypass_mode .*needs algorithm\.rollout_correction\.bypass_mode=true",
        ),
    ],
)
def test_losses_that_could_not_take_a_step_stop_the_run(
    tiny_model_dir: Path, loss: str, key: str, value: Any, message: str
) -> None:
    config = RunConfig()
    actor = config.actor_rollout_ref.actor
    config.actor_rollout_ref.model.path, actor.policy_loss.loss_mode = str(tiny_model_dir), loss
    *section, name = key.split(".")
    setattr(actor.policy_loss if section else actor, name, value)
    with pytest.raises(ConfigError, match=message):
        resolve(config)


def test_rows_may_not_be_skipped_where_the_loss_looks_at_the_whole_mini_batch(tiny_model_dir: Path) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path, config.data.train_files = str(tiny_model_dir), "tasks.jsonl"
    actor = config.actor_rollout_ref.actor
    actor.skip_zero_advantages, actor.entropy_coeff, actor.kl_loss_coef = True, 0.0, 0.0
    resolve(config)
    config.algorithm.rollout_correction = RolloutCorrectionConfig(
        bypass_mode=True, rollout_rs="token_k1", rollout_rs_threshold=2.0
    )
    with pytest.raises(
        ConfigError,
        match=r"skip_zero_advantages=true contradicts algorithm\.rollout_correction\.bypass_mode=true",
    ):
        resolve(config)


def test_masked_sequences_are_not_compared_by_column(tiny_model_dir: Path) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.actor_rollout_ref.rollout.tool_samples = "sequence"
    config.algorithm.adv_estimator = "optimal_token_baseline"
    with pytest.raises(
        ConfigError, match=r"rollout\.tool_samples=sequence: .*use tir_optimal_token_baseline"
    ):
        resolve(config)
    config.algorithm.adv_estimator = "tir_optimal_token_baseline"
    resolve(config)
