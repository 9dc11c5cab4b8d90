"""Names of verl, Dr. MAS and earlier versions for what a value of one key says here."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
from yaml import safe_load

from verl.compat.command import translate
from verl.compat.values import PER_AGENT, same
from verl.trainer.config.command import split
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


@pytest.mark.parametrize(
    ("marker", "temperature"), [("data.truncation=error", 0.6), ("env.seed=1", 0.0), (ALONE[0], 0.6)]
)
def test_a_temperature_of_validation_alone_counts_but_in_dr_mas(marker: str, temperature: float) -> None:
    """verl 0.9 never reads do_sample (`AgentLoopWorker.generate_sequences`); the verl of Dr. MAS, an older
    one, is greedy without it.
    """
    values = "actor_rollout_ref.rollout.val_kwargs"
    config = compose_config([marker, *ALONE[1:], f"{values}.temperature=0.6"])
    assert config.actor_rollout_ref.rollout.val_kwargs.temperature == temperature


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
        (["algorithm.group_by=null", "algorithm.group_by_agent_id=false"], "algorithm.group_by", ["uid"]),
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


Own = tuple[Any, Any]  # of two agents; None: the common value


def common_and_own(common: Sequence[Any], *of_agents: Own) -> list[tuple[Any, Own | None]]:
    """Values of a key for the team and for its agents, None where it is not set."""
    return list(product([None, *common], [None, *of_agents]))


def check_agents(
    names: Sequence[str],
    values: Sequence[Sequence[tuple[Any, Own | None]]],
    keys: Sequence[str],
    rule: Callable[[list[Any]], list[Any]],
) -> tuple[int, int]:
    """Every combination of former names, below `actor_rollout_ref`, gives each agent the values of `keys`
    that it had, by the rule of then, or is refused; return how many are accepted and refused.
    """
    outcomes = []
    for combination in product(*values):
        typed = []
        for name, (common, own) in zip(names, combination, strict=True):
            typed += [] if common is None else [f"actor_rollout_ref.{name}={common}"]
            text = ",".join("null" if value is None else str(value) for value in own or ())
            typed += [] if own is None else [f"{PER_AGENT}.{name}=[{text}]"]
        command = translate(typed)
        now = {key: safe_load(value) for key, value in map(split, command.overrides)}
        accepted = not command.contradictions and all(
            key.replace(PER_AGENT, "actor_rollout_ref") in KEYS for key in now
        )
        outcomes.append(accepted)
        for agent in (0, 1) if accepted else ():
            values_of_then = [
                common if own is None or own[agent] is None else own[agent] for common, own in combination
            ]
            values_now = []
            for key in keys:
                common = now.get(f"actor_rollout_ref.{key}", KEYS[f"actor_rollout_ref.{key}"].default)
                own = now.get(f"{PER_AGENT}.{key}")
                values_now.append(common if own is None or own[agent] is None else own[agent])
            assert values_now == rule(values_of_then), (typed, agent)
    return outcomes.count(True), outcomes.count(False)


@pytest.mark.parametrize(
    "switch",
    [s for s in SWITCHES if s.number.startswith("actor_rollout_ref.")],
    ids=lambda switch: switch.name,
)
def test_switches_of_agents_mean_what_they_meant_beside_those_of_the_team(switch: Switch) -> None:
    """An agent's null is the common switch, which was off where the key here is."""
    on, off = map(as_typed, switch.words)
    names = [name.removeprefix("actor_rollout_ref.") for name in (switch.name, switch.number)]
    common_switch = off if KEYS[switch.number].default == switch.off else on

    def rule(values: list[Any]) -> list[Any]:
        is_on, number = values
        if (is_on or common_switch) == off:
            return [switch.off]
        return [float(switch.on) if number is None else number]

    switches = [
        pair for pair in common_and_own([on, off], (on, None), (off, None), (on, off)) if pair[1] is not None
    ]
    accepted, refused = check_agents(names, [switches, common_and_own([5], (None, 3))], [names[1]], rule)
    assert accepted > 12 and refused < 2 * accepted


def test_both_ratios_of_agents_mean_what_they_meant() -> None:
    """A side is the ratio where neither the agent nor the team has its own."""
    names = [f"actor.{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")]
    values = [
        common_and_own([0.1], (0.15, None)),
        common_and_own([0.3], (None, 0.32)),
        common_and_own([0.4], (0.41, None), (None, 0.42)),
    ]

    def rule(values: list[Any]) -> list[Any]:
        ratio, *sides = values
        return [(0.2 if ratio is None else ratio) if side is None else side for side in sides]

    assert check_agents(names, values, names[1:], rule) == (96, 0)


def test_warm_ups_of_agents_mean_what_they_meant() -> None:
    """The share counts where neither the agent nor the team has steps."""
    names = ["actor.optim.lr_warmup_steps", "actor.optim.lr_warmup_steps_ratio"]
    values = [
        common_and_own([-1, 5], (3, None), (-1, None), (3, -1)),
        common_and_own([0.1], (0.2, None), (None, 0.3)),
    ]

    def rule(values: list[Any]) -> list[Any]:
        steps, share = values
        return [steps if steps is not None and steps >= 0 else share or 0]

    accepted, refused = check_agents(names, values, names[:1], rule)
    assert accepted > 60 and refused < 12


@pytest.mark.parametrize("shaping", ["discount", "hop_discount", "binary", "turn_weighted"])
def test_numbers_of_another_shaping_had_no_effect(shaping: str) -> None:
    of_then = ["reward.shaping_gamma=0.9", "reward.shaping_threshold=0.5"]
    read = {"discount": 0.9, "hop_discount": 0.9, "binary": 0.5}.get(shaping)
    config = compose_config([*ALONE, f"reward.shaping={shaping}", *of_then])
    assert config.reward.shaping_by == read
    for unread in ("reward.shaping_gamma=0.8", "reward.shaping_threshold=0.1"):
        is_read = (shaping == "binary") == ("threshold" in unread) and read is not None
        if not is_read:
            with pytest.raises(ConfigError, match=r"earlier version, here reward\.shaping_by: of"):
                compose_config([*ALONE, f"reward.shaping={shaping}", unread])
