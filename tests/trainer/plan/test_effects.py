"""A changed key that would do nothing stops the run, and says what it needs."""

from contextlib import nullcontext
from functools import reduce
from itertools import product
from typing import Any

import pytest

from tests.plans import plan_of
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import IneffectiveKeyError, keys
from verl.trainer.plan.checks import check_untrained
from verl.trainer.plan.effects import Scope, check_effect, unmet
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, compute_grpo_outcome_advantage


def another(value: Any) -> Any:
    """A value that is not the default."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, dict):
        return {"Solver Agent": 7}
    return [*value, 7.0] if isinstance(value, list) else f"not {value}"


def change(config: RunConfig, key: str) -> None:
    """Set a key to something else."""
    *sections, name = key.split(".")
    section = reduce(getattr, sections, config)
    setattr(section, name, another(getattr(section, name)))


def check(config: RunConfig) -> None:
    """Check as a run does."""
    check_effect(config, plan_of(config))


def test_the_defaults_are_silent(config: RunConfig) -> None:
    check(config)


SCOPE = Scope(RunConfig(), RunPlan((), ()))
IDLE = [name for name, key in keys(RunConfig).items() if unmet(key, SCOPE)]


@pytest.mark.parametrize("key", IDLE)
def test_a_changed_key_without_effect_is_named_with_what_it_needs(config: RunConfig, key: str) -> None:
    change(config, key)
    with pytest.raises(IneffectiveKeyError, match=rf"{key}=.* has no effect.*; it needs \w+"):
        check(config)


def test_a_per_agent_override_counts_for_its_agent(config: RunConfig) -> None:
    config.agent.agent_specific_parameters = {
        "actor": {"kl_loss_coef": [0.5, 0.0], "kl_loss_type": ["k1", "k2"]}
    }
    with pytest.raises(
        IneffectiveKeyError,
        match=r"actor\.kl_loss_type=k2 has no effect for agent 'Verifier Agent'; it needs .*kl_loss_coef>0",
    ):
        check(config)
    config.agent.agent_specific_parameters = {
        "actor": {"kl_loss_coef": [0.001, 0.5], "kl_loss_type": ["k1", "k2"]}
    }
    check(config)


@pytest.mark.parametrize("own", ["clip_ratio_low", "tau_pos"])
@pytest.mark.parametrize("losses", list(product(["vanilla", "sapo"], repeat=2)))
@pytest.mark.parametrize("values", list(product([None, 0.5], repeat=2)))
@pytest.mark.parametrize("frozen", [False, True])
def test_a_common_key_of_the_policies_needs_one_that_reads_it_and_has_no_own_value(
    config: RunConfig, own: str, losses: tuple[str, str], values: tuple[Any, Any], frozen: bool
) -> None:
    trained = [0] if frozen else [0, 1]
    values = (values[0], None) if frozen else values
    readers = [loss == ("sapo" if own == "tau_pos" else "vanilla") for loss in losses]
    config.agent.frozen = ["Verifier Agent"] if frozen else []
    config.agent.agent_specific_parameters = {
        "actor": {
            "policy_loss": {"loss_mode": [losses[0], None if frozen else losses[1]]},
            own: list(values),
        }
    }
    if (own_dead := [i for i in trained if values[i] is not None and not readers[i]]) == []:
        check(config)
    setattr(config.actor_rollout_ref.actor, own, 2.0)
    sharing = [i for i in trained if values[i] is None]
    common = any(readers[i] for i in sharing) or not sharing  # a default that every agent replaces
    key = rf"(actor_rollout_ref|agent_specific_parameters)\.actor\.{own}=.* has no effect"
    with nullcontext() if common and not own_dead else pytest.raises(IneffectiveKeyError, match=key):
        check(config)


def test_an_evaluation_takes_the_keys_of_the_run(config: RunConfig) -> None:
    config.algorithm.adv_estimator, config.algorithm.lam, config.trainer.total_epochs = "gae", 0.9, 5
    config.critic.optim.lr = config.actor_rollout_ref.actor.optim.lr = 0.01
    config.actor_rollout_ref.actor.clip_ratio_low = 0.3
    for val_only in (False, True):
        config.trainer.val_only = val_only
        check(config)


@pytest.mark.parametrize("shared", [False, True])
def test_a_lead_needs_policies_that_train_in_several_lanes(config: RunConfig, shared: bool) -> None:
    config.async_training.mode, config.async_training.max_lead = "fully_async", 0
    config.algorithm.group_by = ["uid", "agent_id"]
    config.agent.specialization = "prompt" if shared else "full"
    with (
        pytest.raises(IneffectiveKeyError, match=r"max_lead=0 has no effect; it needs .* several lanes")
        if shared
        else nullcontext()
    ):
        check(config)


def test_an_estimator_of_one_agent_makes_its_keys_count(config: RunConfig) -> None:
    config.algorithm.lam = 0.9
    config.algorithm.per_agent = {"solver_agent": {"adv_estimator": "gae"}}
    check(config)


def test_a_users_estimator_may_read_any_key(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*args: Any, **kwargs: Any) -> Any:
        return compute_grpo_outcome_advantage(*args, **kwargs)

    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "mine", mine)
    config.algorithm.adv_estimator, config.algorithm.lam = "mine", 0.9
    check(config)


@pytest.mark.parametrize("estimator", ["gae", "rae", "reinforce_plus_plus", "remax"])
@pytest.mark.parametrize(("key", "value"), [("group_by", ["uid"]), ("singleton", "raw")])
def test_keys_of_groups_need_an_estimator_that_has_some(
    config: RunConfig, estimator: str, key: str, value: Any
) -> None:
    config.algorithm.adv_estimator = estimator
    setattr(config.algorithm, key, value)
    with pytest.raises(
        IneffectiveKeyError,
        match=rf"algorithm\.{key}=.* has no effect; it needs algorithm\.adv_estimator=.*grpo.*rloo",
    ):
        check(config)
    config.algorithm.per_agent = {"solver_agent": {"adv_estimator": "grpo"}}
    check(config)


def test_a_key_of_one_agent_is_judged_by_that_agents_estimator(config: RunConfig) -> None:
    config.algorithm.per_agent = {
        "solver_agent": {"adv_estimator": "reinforce_plus_plus", "gamma": 0.9},
        "verifier_agent": {"lam": 0.5},
    }
    with pytest.raises(
        IneffectiveKeyError,
        match=r"algorithm\.per_agent\.verifier_agent\.lam=0\.5 has no effect; it needs, for this agent, .*gae",
    ):
        check(config)
    config.algorithm.per_agent["verifier_agent"] = {
        "gigpo": {"step_advantage_w": 0.5},
        "adv_estimator": "gigpo",
    }
    check(config)


@pytest.mark.parametrize(
    ("loss", "key", "value"),
    [
        ("vanilla", "policy_loss.dro_beta", 0.3),
        ("gpg", "clip_ratio_high", 0.1),
        ("sapo", "clip_ratio_high", 0.3),
        ("kl_cov", "clip_ratio_low", 0.1),
        ("dro", "clip_ratio_low", 0.1),
        ("gspo", "clip_ratio_c", 10.0),
        ("clip_cov", "clip_ratio_c", 10.0),
        ("sapo", "loss_agg_mode", "token-sum"),
        ("gmpo", "loss_agg_mode", "token-sum"),
        ("gspo", "loss_agg_mode", "token-sum"),
        ("gspo", "loss_agg_mode", "seq-mean-token-sum"),
        ("geo_mean", "loss_agg_mode", "seq-mean-token-mean"),
    ],
)
def test_keys_that_the_loss_does_not_read_are_refused(
    config: RunConfig, loss: str, key: str, value: Any
) -> None:
    actor = config.actor_rollout_ref.actor
    actor.policy_loss.loss_mode = loss
    *sections, name = key.split(".")
    setattr(reduce(getattr, sections, actor), name, value)
    with pytest.raises(IneffectiveKeyError, match=rf"{key}={value} has no effect"):
        check(config)


@pytest.mark.parametrize(
    ("loss", "key"), [("dppo", "clip_ratio_c"), ("gspo", "clip_ratio_high"), ("clip_cov", "clip_ratio_low")]
)
def test_keys_that_the_loss_reads_are_silent(config: RunConfig, loss: str, key: str) -> None:
    config.actor_rollout_ref.actor.policy_loss.loss_mode = loss
    setattr(config.actor_rollout_ref.actor, key, 7.0)
    check(config)


@pytest.mark.parametrize("loss", ["sapo", "gspo"])
def test_loss_agg_mode_has_an_effect_with_an_entropy_or_kl_term(config: RunConfig, loss: str) -> None:
    actor = config.actor_rollout_ref.actor
    actor.policy_loss.loss_mode, actor.loss_agg_mode, actor.entropy_coeff = loss, "token-sum", 0.01
    check(config)


@pytest.mark.parametrize("loss", ["sapo", "gspo"])
def test_an_aggregation_equal_to_the_fixed_one_of_the_loss_is_accepted(config: RunConfig, loss: str) -> None:
    actor = config.actor_rollout_ref.actor
    actor.policy_loss.loss_mode, actor.loss_agg_mode = loss, "seq-mean-token-mean"
    check(config)


@pytest.mark.parametrize("section", ["ref", "rollout"])
def test_a_pass_over_rows_reads_either_tokens_or_rows(config: RunConfig, section: str) -> None:
    config.actor_rollout_ref.actor.ppo_epochs, config.actor_rollout_ref.actor.kl_loss_coef = 2, 0.001
    keys = getattr(config.actor_rollout_ref, section)
    keys.log_prob_max_token_len_per_gpu = 4096
    check(config)
    keys.log_prob_micro_batch_size_per_gpu = 8
    with pytest.raises(
        IneffectiveKeyError,
        match=rf"{section}\.log_prob_max_token_len_per_gpu=4096 has no .*"
        "log_prob_micro_batch_size_per_gpu=nu",
    ):
        check(config)


PASS_KEYS = {"log_prob_max_token_len_per_gpu": 4096}


@pytest.mark.parametrize("key", PASS_KEYS)
@pytest.mark.parametrize("makes", ["algorithm.kl_ctrl.kl_coef", "actor_rollout_ref.actor.kl_loss_coef"])
def test_keys_of_the_reference_need_one(config: RunConfig, key: str, makes: str) -> None:
    setattr(config.actor_rollout_ref.ref, key, PASS_KEYS[key])
    with pytest.raises(
        IneffectiveKeyError, match=rf"actor_rollout_ref\.ref\.{key}=.* has no effect .*; it needs a reference"
    ):
        check(config)
    change(config, makes)
    check(config)


@pytest.mark.parametrize("key", PASS_KEYS)
@pytest.mark.parametrize(
    ("makes", "value"),
    [
        ("actor_rollout_ref.actor.ppo_epochs", 2),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 8),
        ("algorithm.kl_ctrl.kl_coef", 0.001),
        ("algorithm.rollout_correction.rollout_is", "token"),
        ("algorithm.adv_estimator", "optimal_token_baseline"),
    ],
)
def test_keys_of_old_log_probs_need_a_pass_for_them(
    config: RunConfig, key: str, makes: str, value: Any
) -> None:
    setattr(config.actor_rollout_ref.rollout, key, PASS_KEYS[key])
    with pytest.raises(
        IneffectiveKeyError, match=rf"rollout\.{key}=.* has no effect .*; it needs a pass for old log-probs"
    ):
        check(config)
    *sections, name = makes.split(".")
    setattr(reduce(getattr, sections, config), name, value)
    check(config)


def test_bypass_mode_has_no_pass_for_old_log_probs_except_during_critic_warmup(config: RunConfig) -> None:
    config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu = 4096
    config.actor_rollout_ref.actor.ppo_epochs, config.algorithm.rollout_correction.bypass_mode = 2, True
    with pytest.raises(IneffectiveKeyError, match=r"bypass_mode=false"):
        check(config)
    config.algorithm.adv_estimator, config.trainer.critic_warmup = "gae", 1
    check(config)


@pytest.mark.parametrize("section", ["actor_rollout_ref.actor", "critic"])
def test_keys_of_the_end_of_a_schedule_are_refused_for_a_constant_learning_rate(
    config: RunConfig, section: str
) -> None:
    config.algorithm.adv_estimator = "gae"
    optim = reduce(getattr, section.split("."), config).optim
    optim.min_lr_ratio = 0.1
    with pytest.raises(
        IneffectiveKeyError,
        match=rf"{section}\.optim\.min_lr_ratio=0\.1 has no .*{section}\.optim\.lr_scheduler_type=linear",
    ):
        check(config)
    optim.lr_scheduler_type = "cosine"
    check(config)


@pytest.mark.parametrize(("key", "value"), [("policy_loss.loss_mode", "gspo"), ("clip_ratio_low", 0.1)])
def test_reinforce_in_bypass_mode_reads_neither_loss_nor_clip(
    config: RunConfig, key: str, value: Any
) -> None:
    correction, actor = config.algorithm.rollout_correction, config.actor_rollout_ref.actor
    correction.bypass_mode, correction.loss_type = True, "reinforce"
    *sections, name = key.split(".")
    setattr(reduce(getattr, sections, actor), name, value)
    with pytest.raises(IneffectiveKeyError, match=rf"{key}={value} has no effect.*ppo_clip"):
        check(config)


GPU_KEYS = {
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "critic.fsdp.param_offload": True,
}


@pytest.mark.parametrize("key", GPU_KEYS)
def test_keys_of_a_gpu_are_refused_on_a_cpu(config: RunConfig, key: str) -> None:
    config.actor_rollout_ref.rollout.name, config.algorithm.adv_estimator = "vllm", "gae"
    *sections, name = key.split(".")
    setattr(reduce(getattr, sections, config), name, GPU_KEYS[key])
    check(config)
    config.trainer.device = "cpu"
    with pytest.raises(
        IneffectiveKeyError, match=rf"{key}=.* has no effect.*; it needs a GPU: trainer\.device=auto or cuda"
    ):
        check(config)


@pytest.mark.parametrize(("key", "value"), [("gpu_memory_utilization", 0.3), ("enforce_eager", True)])
def test_keys_of_vllm_are_refused_for_a_frozen_agent_on_another_engine_too(
    config: RunConfig, key: str, value: Any
) -> None:
    config.agent.frozen = ["Verifier Agent"]
    config.agent.agent_specific_parameters = {"rollout": {key: [None, value]}}
    with pytest.raises(
        IneffectiveKeyError,
        match=rf"rollout\.{key}={value} has no effect for agent 'Verifier Agent'; it needs .*vllm",
    ):
        check(config)
    config.agent.agent_specific_parameters["rollout"]["name"] = [None, "vllm"]
    check(config)
    config.trainer.device = "cpu"
    with pytest.raises(IneffectiveKeyError, match="for agent 'Verifier Agent'; it needs a GPU"):
        check(config)


def test_engines_with_devices_of_their_own_free_no_cache(config: RunConfig) -> None:
    config.actor_rollout_ref.rollout.free_cache_engine = False
    check(config)
    config.rollout.n_gpus_per_node = 2
    with pytest.raises(
        IneffectiveKeyError,
        match=r"free_cache_engine=False has no effect.* needs shared devices: rollout\.n_gpus_per_node=0",
    ):
        check(config)


def test_a_frozen_agent_frees_no_cache_unless_its_base_learns(config: RunConfig) -> None:
    """The engine that it shares with adapters is one thing, and all on it say the same of it."""
    config.agent.frozen = ["Verifier Agent"]
    config.agent.agent_specific_parameters = {"rollout": {"free_cache_engine": [None, False]}}
    with pytest.raises(
        IneffectiveKeyError,
        match=r"rollout\.free_cache_engine gives agent 'Verifier Agent' False, which has no effect: it is frozen",
    ):
        check_untrained(
            config.agent,
            config.trainer,
            config.actor_rollout_ref,
            build_placement(config.agent, config.actor_rollout_ref),
        )
    config.agent.specialization = "lora"
    config.agent.agent_specific_parameters = {
        "rollout": {"free_cache_engine": [False, False], "update_bucket_mb": [8, 8]}
    }
    check_untrained(
        config.agent,
        config.trainer,
        config.actor_rollout_ref,
        build_placement(config.agent, config.actor_rollout_ref),
    )
