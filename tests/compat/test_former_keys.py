"""Names of verl, Dr. MAS and earlier versions for what a value of one key says here."""

import pytest

from verl.compat.command import translate
from verl.compat.values import PER_AGENT, same
from verl.trainer.config.spec import ConfigError, as_typed
from verl.trainer.plan.command_line import KEYS, compose_config
from verl.trainer.plan.earlier_files import SWITCHES, Switch
from verl.utils.names import value_at

ACTOR = "actor_rollout_ref.actor"
ALONE = ["agent.orchestra_type=single", "agent.agent_ids=[Single Agent]", "env.env_name=math"]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_becomes_a_value_of_its_key_in_any_command(switch: Switch) -> None:
    """On without a value, on and off beside one, and a value that is no switch."""
    on, off = map(as_typed, switch.words)
    number = KEYS[switch.number]
    other = "team_reward" if number.choices else "3"
    for typed, expected in (
        ([f"{switch.name}={on}"], switch.on),
        ([f"{switch.name}={on}", f"{switch.number}={other}"], other),
        ([f"{switch.number}={other}", f"{switch.name}={on}"], other),
        ([f"{switch.name}={off}", f"{switch.number}={other}"], as_typed(switch.off)),
        ([f"{switch.name}={off}"], as_typed(switch.off)),
    ):
        for marker in ([], ["data.truncation=error"])[: 1 + (len(typed) == 1)]:
            config = compose_config([*ALONE, *typed, *marker])
            assert same(as_typed(value_at(config, switch.number)), expected), (typed, marker)
    assert switch.name not in KEYS
    with pytest.raises(ConfigError, match=rf"unknown key {switch.name}; .*here {switch.number}: "):
        compose_config([*ALONE, f"{switch.name}=sometimes"])


@pytest.mark.parametrize("switch", [s for s in SWITCHES if s.is_verls], ids=lambda switch: switch.name)
def test_a_value_without_its_switch_has_no_effect_in_a_command_of_verl(switch: Switch) -> None:
    value = "team_reward" if KEYS[switch.number].choices else "0.5"
    typed = f"{switch.number}={value}"
    command = translate([typed, "data.truncation=error"])
    assert typed not in command.overrides and f"no effect without {switch.name}" in command.warning()
    assert value_at(compose_config([typed, "data.truncation=error"]), switch.number) == switch.off
    assert same(as_typed(value_at(compose_config([*ALONE, typed]), switch.number)), value)


def test_the_penalty_for_long_replies_of_verl_needs_its_switch() -> None:
    buffer = "reward.reward_kwargs.overlong_buffer_cfg"
    for typed, length in (
        ([f"{buffer}.enable=True"], 0),
        ([f"{buffer}.enable=True", f"{buffer}.len=7"], 7),
        ([f"{buffer}.enable=False", f"{buffer}.len=7", f"{buffer}.penalty_factor=2.0"], None),
        (["reward_model.overlong_buffer.len=7"], None),
        (["reward_model.overlong_buffer.len=7", "reward_model.overlong_buffer.enable=True"], 7),
    ):
        assert compose_config([*ALONE, *typed]).reward.overlong_buffer.len == length, typed


REF = "actor_rollout_ref.ref.log_prob_"


@pytest.mark.parametrize(
    ("typed", "rows"),
    [
        ([], [8, 8, 8]),
        ([f"{ACTOR}.use_dynamic_bsz=True"], [None, None, None]),
        (
            [f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
             f"{REF}micro_batch_size_per_gpu=5", "critic.ppo_micro_batch_size_per_gpu=6"],
            [None, None, None],
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
             f"{REF}micro_batch_size_per_gpu=5", "critic.ppo_micro_batch_size_per_gpu=6"],
            [4, 5, 6],
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=True", f"{REF}use_dynamic_bsz=False",
             f"{REF}micro_batch_size_per_gpu=7"],
            [None, 7, None],
        ),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=null", "critic.use_dynamic_bsz=True"], [8, 8, None]),
    ],
)  # fmt: skip
def test_micro_batches_of_a_command_of_verl_count_what_they_count_there(
    typed: list[str], rows: list[int | None]
) -> None:
    """Rows of the update, of the reference and of the critic; None: tokens."""
    config = compose_config([*typed, "data.truncation=error"])
    actor, reference = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    assert [
        actor.ppo_micro_batch_size_per_gpu,
        reference.log_prob_micro_batch_size_per_gpu,
        config.critic.ppo_micro_batch_size_per_gpu,
    ] == rows


OWN_OPTIM = f"{PER_AGENT}.actor.optim.lr_warmup_steps"
WARM_UP = f"{ACTOR}.optim.lr_warmup_steps"
FOLDER = "/a/global_step_3"
PATH, NAME = (f"reward.custom_reward_function.{leaf}" for leaf in ("path", "name"))
SHARE_OF_ALL = "lr_warmup_steps_ratio.*; .*lr_warmup_steps: below 1"


@pytest.mark.parametrize("marker", [[], ["data.truncation=error"]])
@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ([f"{WARM_UP}=-1", f"{WARM_UP}_ratio=0.1"], WARM_UP, 0.1),
        ([f"{WARM_UP}=5", f"{WARM_UP}_ratio=0.1"], WARM_UP, 5),
        ([f"{WARM_UP}_ratio=0.1", "critic.optim.lr_warmup_steps_ratio=0"], "critic.optim.lr_warmup_steps", 0),
        ([f"{OWN_OPTIM}=[3,-1]", f"{OWN_OPTIM}_ratio=[null,0.2]"], OWN_OPTIM, [3, 0.2]),
        ([f"{OWN_OPTIM}_ratio=[null,0.2]"], OWN_OPTIM, [None, 0.2]),
        (
            ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={FOLDER}"],
            "trainer.resume_mode",
            FOLDER,
        ),
        (["trainer.resume_from_path=null"], "trainer.resume_mode", "auto"),
        (["{profiler}.enable=true", "{profiler}.ranks=[1]"], "{profiler}.ranks", [1]),
        (["{profiler}.enable=true", "{profiler}.all_ranks=true"], "{profiler}.ranks", "all"),
        (["{profiler}.ranks=[1]", "{profiler}.enable=false"], "{profiler}.ranks", []),
        ([f"{ACTOR}.clip_ratio=0.1"], f"{ACTOR}.clip_ratio_low", 0.1),
        ([f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_high=0.3"], f"{ACTOR}.clip_ratio_high", 0.3),
        ([f"{ACTOR}.clip_ratio_low=0.3", f"{ACTOR}.clip_ratio=0.1"], f"{ACTOR}.clip_ratio_high", 0.1),
        ([f"{ACTOR}.clip_ratio_low=null", f"{ACTOR}.clip_ratio=0.1"], f"{ACTOR}.clip_ratio_low", 0.1),
        (["algorithm.group_by_agent_id=false"], "algorithm.group_by", ["uid"]),
        (["algorithm.group_by_agent_id=true"], "algorithm.group_by", ["uid", "agent_id"]),
        (
            ["algorithm.group_by_agent_id=true", "algorithm.group_by=[uid,turn]"],
            "algorithm.group_by",
            ["uid", "turn"],
        ),
        (
            ["algorithm.group_by_agent_id=true", "algorithm.preset=at_grpo"],
            "algorithm.group_by",
            ["traj_uid", "agent_id", "turn", "call"],
        ),
        (["algorithm.group_by_agent_id=false", "algorithm.preset=dr_mas"], "algorithm.group_by", ["uid"]),
        (["agent.team_command=[node,team.js]"], "agent.team", ["node", "team.js"]),
        (["trainer.balance_batch=true"], "trainer.resume_mode", "auto"),
        (["trainer.check_engines=false"], "trainer.checks", ["memory"]),
        (["trainer.check_engines=false", "trainer.check_memory=false"], "trainer.checks", []),
        (["reward.shaping=discount", "reward.shaping_gamma=0.5"], "reward.shaping_by", 0.5),
        ([f"{PATH}=f.py", f"{NAME}=score"], PATH, "f.py:score"),
        ([f"{NAME}=compute_score", f"{PATH}=f.py"], PATH, "f.py"),
        (["custom_reward_function.path='f.py'", "custom_reward_function.name=score"], PATH, "f.py:score"),
        (
            [
                "global_profiler.tool=torch",
                "global_profiler.steps=[1,2,4]",
                "global_profiler.profile_continuous_steps=True",
            ],
            "global_profiler.steps",
            [[1, 2], 4],
        ),
        (["global_profiler.tool=null", "global_profiler.steps=[1]"], "global_profiler.steps", None),
        (["global_profiler.tool=torch", "global_profiler.steps=[1]"], "global_profiler.steps", [1]),
    ],
)
def test_keys_that_say_one_thing_are_one_key_in_any_command(
    marker: list[str], typed: list[str], key: str, value: object
) -> None:
    profiler = f"{ACTOR}.profiler"
    on = [
        "global_profiler.tool=torch",
        "global_profiler.steps=[2]",
        "actor_rollout_ref.model.path=owner/model",
    ]
    given = [setting.format(profiler=profiler) for setting in typed]
    config = compose_config(
        [*ALONE, *given, *marker, *(on if "profiler" in typed[0] and "tool" not in typed[0] else [])]
    )
    section, _, leaf = key.format(profiler=profiler).removeprefix(f"{PER_AGENT}.").rpartition(".")
    if key.startswith(PER_AGENT):
        own = config.agent.agent_specific_parameters
        assert own == {"actor": {"optim": {leaf: value}}}
    else:
        assert value_at(config, f"{section}.{leaf}") == value


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([f"{WARM_UP}_ratio=1.0"], SHARE_OF_ALL),
        ([f"{OWN_OPTIM}_ratio=[1,0.5]"], SHARE_OF_ALL),
        (
            [f"trainer.resume_from_path={FOLDER}"],
            r"resume_from_path; .* trainer\.resume_mode: the folder itself",
        ),
        (["trainer.resume_mode=resume_path"], "expected auto, disable or a checkpoint folder"),
        (
            ["trainer.balance_batch=false"],
            "no key any more: ranks always get about the same number of tokens",
        ),
        (
            ["rollout.pool_sizes={solver: 1}"],
            r"pool_sizes; a key of an earlier version, here trainer\.pool_sizes: ",
        ),
        (["trainer.check_engines=0"], r"a key of an earlier version, here trainer\.checks: the list of"),
        ([f"{NAME}=f"], r"function\.name; verl's key, here reward\.custom_reward_function\.path: file_or"),
        (["algorithm.group_by_agent_id=maybe"], r"here algorithm\.group_by: \[uid,agent_id\], or \[uid\]"),
        (["agent.team_command=a b", "agent.team=a:b"], "set the same key to different values"),
        ([f"{PER_AGENT}.actor.profiler.enable=[true,false]"], r"profiler\.ranks: one list per agent, or all"),
    ],
)
def test_what_the_one_key_cannot_say_is_refused_with_its_name(typed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose_config([*ALONE, *typed])
