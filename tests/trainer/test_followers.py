"""Keys that have the value of another key unless they are set."""

from dataclasses import fields

import pytest

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RunConfig
from verl.trainer.config.spec import ConfigError, followers, keys
from verl.trainer.plan.command_line import compose_config
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.placement import build_placement
from verl.utils.names import value_at

ACTOR = "actor_rollout_ref.actor"
FOLLOWERS = followers(RunConfig)


@pytest.mark.parametrize(("name", "leader"), FOLLOWERS.items())
def test_a_key_has_the_type_the_range_and_the_default_of_the_key_that_it_follows(
    name: str, leader: str
) -> None:
    declared = keys(RunConfig)
    follower, other = declared[name], declared[leader]
    assert (follower.ge, follower.gt, follower.le, follower.lt) == (other.ge, other.gt, other.le, other.lt)
    assert follower.choices == other.choices and follower.default in (other.default, None)
    assert not other.like or other.like in declared


def test_a_section_follows_in_the_keys_that_both_inherit_and_in_no_other() -> None:
    own = {name for name in keys(RunConfig) if name.startswith("critic.") and name not in FOLLOWERS}
    assert own == {
        "critic.enable", "critic.view", "critic.joint_prompt_length", "critic.cliprange_value",
        "critic.model.path", "critic.model.tokenizer_path", "critic.model.trust_remote_code",
        "critic.optim.lr",
    }  # fmt: skip
    assert {f"critic.fsdp.{f.name}" for f in fields(RunConfig().critic.fsdp)} <= FOLLOWERS.keys()


def test_a_key_that_is_not_set_has_the_value_of_the_key_that_it_follows() -> None:
    config = compose_config(
        [
            f"{ACTOR}.optim.betas=[0.8,0.9]",
            f"{ACTOR}.optim.lr=0.5",
            f"{ACTOR}.ppo_epochs=3",
            "critic.ppo_epochs=2",
            f"{ACTOR}.fsdp_config.model_dtype=bf16",
            f"{ACTOR}.ppo_max_token_len_per_gpu=512",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=64",
            "data.max_response_length=99",
        ]
    )
    critic, model = config.critic, config.actor_rollout_ref
    assert (critic.optim.betas, critic.optim.lr, critic.ppo_epochs) == ([0.8, 0.9], 1e-5, 2)
    assert (critic.fsdp.model_dtype, critic.ppo_max_token_len_per_gpu) == ("bf16", 512)
    assert model.rollout.log_prob_max_token_len_per_gpu == 512
    assert model.ref.log_prob_max_token_len_per_gpu == 64
    assert model.rollout.response_length is model.rollout.val_kwargs.response_length is None
    resolve_defaults(config)
    assert model.rollout.response_length == 99


def test_a_section_may_be_set_as_a_whole() -> None:
    config = compose_config([f"{ACTOR}.optim.eps=1e-6", "critic.optim={lr: 0.1, weight_decay: 0.2}"])
    optim = config.critic.optim
    assert (optim.lr, optim.weight_decay, optim.eps) == (0.1, 0.2, 1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("critic.optim.eps=0", "critic.optim.eps=0: expected above 0"),
        ("critic.optim.epss=1", "unknown key critic.optim.epss; did you mean critic.optim.eps?"),
        ("critic.optim.betas=[1]", "critic.optim.betas="),
        (f"{ACTOR}.ppo_epochs=0", f"{ACTOR}.ppo_epochs=0: expected at least 1"),
    ],
)
def test_an_invalid_value_is_blamed_on_the_key_that_was_set(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_config([override])
    assert str(refused.value).startswith(message)


def test_the_own_value_of_an_agent_is_followed_by_its_keys() -> None:
    base = ActorRolloutRefConfig()
    base.model.path = "some/model"
    base.ref.log_prob_micro_batch_size_per_gpu = 5
    own = {"actor": {"ppo_micro_batch_size_per_gpu": [2, None], "ppo_max_token_len_per_gpu": [7, None]},
           "ref": {"log_prob_max_token_len_per_gpu": [9, None]}}  # fmt: skip
    agent = AgentConfig(agent_ids=["A", "B"], agent_specific_parameters=own)
    first, second = (row.config for row in build_placement(agent, base).agents)
    assert first.rollout.log_prob_micro_batch_size_per_gpu == 2
    assert first.ref.log_prob_micro_batch_size_per_gpu == 5, "a common value of its own stays"
    assert first.rollout.log_prob_max_token_len_per_gpu == 7
    assert first.ref.log_prob_max_token_len_per_gpu == 9
    assert second.rollout == base.rollout


def test_a_configuration_made_in_python_has_the_defaults() -> None:
    config = RunConfig()
    for name, leader in FOLLOWERS.items():
        assert value_at(config, name) in (value_at(config, leader), None)
