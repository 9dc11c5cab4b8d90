"""Keys that have the value of another key unless they are set."""

from dataclasses import fields
from pathlib import Path

import pytest

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RunConfig
from verl.trainer.config.spec import ConfigError, followers, keys
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.command_line import compose_config
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.placement import PlacementError, build_placement
from verl.utils.names import value_at

ACTOR = "actor_rollout_ref.actor"
FOLLOWERS = {name: key.like for name, key in keys(RunConfig).items() if key.like}


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
        "critic.enable", "critic.joint_prompt_length", "critic.cliprange_value",
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


ROLLOUT, REF = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
OWN = "agent.agent_specific_parameters"
# A key that follows another under `actor_rollout_ref`: both, a value, and two values of the leader of agents.
LOG_PROBS = [
    (name, leader, *{
        "max_token_len_per_gpu": ("64", "[32,16]"),
        "micro_batch_size_per_gpu": ("4", "[2,1]"),
    }[leader.partition("ppo_")[2] or leader.rpartition(".")[2]])
    for name, leader in followers(RunConfig).items()
    if name.startswith("actor_rollout_ref.")
]  # fmt: skip


@pytest.fixture
def team(tmp_path: Path) -> list[str]:
    """Two agents with a model each, of which the checks read the configuration."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    return [f"actor_rollout_ref.model.path={tmp_path}", "agent.agent_ids=[A,B]", "data.train_batch_size=8",
            "agent.orchestra_type=chain", "env.env_name=math"]  # fmt: skip


def test_the_keys_of_a_model_that_follow_others_are_those_of_log_probs() -> None:
    assert len(LOG_PROBS) == 4 and all("log_prob_" in name for name, *_ in LOG_PROBS)


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize(("name", "leader", "value", "own"), LOG_PROBS)
def test_a_common_value_that_is_set_stays_beside_own_values_of_its_leader(
    team: list[str], name: str, leader: str, value: str, own: str, is_set: bool
) -> None:
    config = compose_config(
        [
            *team,
            f"{leader}={value}",
            f"{leader.replace('actor_rollout_ref', OWN)}={own}",
            *([f"{name}={value}"] if is_set else []),
        ]
    )
    rows = build_placement(config.agent, config.actor_rollout_ref).agents
    values = [str(value_at(row, f"config.{name.partition('.')[2]}")).lower() for row in rows]
    assert values == ([value] * 2 if is_set else own.strip("[]").split(","))


def test_null_may_be_set_beside_own_values_of_the_leader(team: list[str]) -> None:
    key = "log_prob_max_token_len_per_gpu"
    config = compose_config([*team, f"{ROLLOUT}.{key}=null", f"{OWN}.actor.ppo_max_token_len_per_gpu=[7,8]"])
    rows = build_placement(config.agent, config.actor_rollout_ref).agents
    assert [row.config.rollout.log_prob_max_token_len_per_gpu for row in rows] == [None, None]
    assert [row.config.ref.log_prob_max_token_len_per_gpu for row in rows] == [7, 8]


@pytest.mark.parametrize(
    ("typed", "lengths"),
    [
        ([f"{ROLLOUT}.response_length=64", f"{ROLLOUT}.val_kwargs.response_length=64"], [64, 64]),
        ([f"{ROLLOUT}.response_length=64"], [32, 16]),
        ([f"{ROLLOUT}.val_kwargs.response_length=64"], [64, 64]),
        ([], [32, 16]),
    ],
)
def test_the_length_of_a_reply_in_validation_is_that_which_is_set(
    team: list[str], typed: list[str], lengths: list[int]
) -> None:
    config = compose_config([*team, *typed, f"{OWN}.rollout.response_length=[32,16]"])
    resolve_defaults(config)
    plan = resolve(config)
    assert [agent.sampling.max_tokens for agent in plan.agents] == [32, 16]
    assert [agent.val_sampling.max_tokens for agent in plan.agents] == lengths


GAE = "algorithm.adv_estimator=gae"
MODEL = "actor_rollout_ref.model"
EAGER, PACKED = f"{MODEL}.attn_implementation=eager", "model.use_remove_padding=true"


@pytest.mark.parametrize(
    ("typed", "start"),
    [
        ([f"{ACTOR}.ppo_mini_batch_size=3"], f"{ACTOR}.ppo_mini_batch_size=3 does not"),
        ([f"{ACTOR}.ppo_mini_batch_size=3", GAE], f"{ACTOR}.ppo_mini_batch_size=3 does not"),
        (["critic.ppo_mini_batch_size=3", GAE], "critic.ppo_mini_batch_size=3 does not"),
        (
            [f"{ACTOR}.ppo_mini_batch_size=3", f"{OWN}.actor.ppo_mini_batch_size=[4,8]", GAE],
            f"{ACTOR}.ppo_mini_batch_size=3 does not",
        ),
        (
            [f"{OWN}.actor.ppo_mini_batch_size=[4,3]", "critic.ppo_mini_batch_size=5", GAE],
            f"{OWN}.actor.ppo_mini_batch_size=3 (agent 'B') does not",
        ),
        *(
            (
                [EAGER, f"actor_rollout_ref.{PACKED}", *more],
                f"{EAGER} cannot run packed rows; set {MODEL}.use",
            )
            for more in ([], [GAE])
        ),
        (
            ["critic.model.attn_implementation=eager", f"critic.{PACKED}", GAE],
            "critic.model.attn_implementation=eager cannot run packed rows; set critic.model.use",
        ),
        (
            ["critic.model.attn_implementation=eager", f"actor_rollout_ref.{PACKED}", GAE],
            "critic.model.attn_implementation=eager cannot run packed rows; set critic.model.use",
        ),
        (
            [EAGER, f"{OWN}.model.attn_implementation=[sdpa,sdpa]", f"actor_rollout_ref.{PACKED}", GAE],
            f"{EAGER} cannot run packed rows; set {MODEL}.use",
        ),
        ([f"{MODEL}.attn_implementation=flash_attention_2"], f"{MODEL}.attn_implementation=flash"),
        ([f"{MODEL}.attn_implementation=flash_attention_2", GAE], f"{MODEL}.attn_implementation=flash"),
        (
            ["critic.model.attn_implementation=flash_attention_2", GAE],
            "critic.model.attn_implementation=flash",
        ),
    ],
)
def test_a_check_of_agents_and_critics_blames_the_key_that_was_set(
    team: list[str], typed: list[str], start: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(compose_config([*team, *typed, f"{ACTOR}.fsdp_config.dtype=fp32"]))
    assert str(refused.value).startswith(start)
    assert start.startswith("critic.") or "critic." not in str(refused.value)


@pytest.mark.parametrize(
    "typed",
    [
        [f"{ACTOR}.ppo_mini_batch_size=3", f"{OWN}.actor.ppo_mini_batch_size=[4,8]"],
        [EAGER, f"actor_rollout_ref.{PACKED}", f"{OWN}.model.attn_implementation=[sdpa,sdpa]"],
    ],
)
def test_without_a_critic_its_values_are_not_checked(team: list[str], typed: list[str]) -> None:
    resolve(compose_config([*team, *typed]))


def test_a_key_has_an_effect_if_a_key_that_follows_it_has_one(team: list[str]) -> None:
    leader = [
        f"{ACTOR}.ppo_epochs=2",
        f"{ACTOR}.use_dynamic_bsz=false",
        f"{ACTOR}.ppo_max_token_len_per_gpu=4096",
    ]
    follower = f"{ROLLOUT}.log_prob_use_dynamic_bsz=true"
    config = compose_config([*team, *leader, follower])
    resolve(config)
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 4096
    for others in ([], [follower, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=99"]):
        with pytest.raises(
            ConfigError, match=r"^actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu=4096 has no"
        ):
            resolve(compose_config([*team, *leader, *others]))


@pytest.mark.parametrize(("name", "leader", "value", "own"), LOG_PROBS)
def test_agents_on_one_policy_differ_in_keys_that_were_set(
    team: list[str], name: str, leader: str, value: str, own: str
) -> None:
    for key in (leader, name):
        config = compose_config(
            [*team, "agent.specialization=prompt", f"{key.replace('actor_rollout_ref', OWN)}={own}"]
        )
        with pytest.raises(PlacementError) as refused:
            build_placement(config.agent, config.actor_rollout_ref)
        values = own.strip("[]").title() if "true" in own else own.strip("[]")
        differing = f"differ in {key.partition('.')[2]} ({values.replace(',', ' and ')}); give"
        assert differing in str(refused.value)
