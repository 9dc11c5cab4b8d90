"""Commands in the keys of verl and Dr. MAS: settings that mean the same are taken, those that would change
the result are refused.
"""

import json
import re
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from verl.compat.command import translate
from verl.compat.keys import TWINS, VERL_KEYS, VERL_MEANINGS, VERL_VALUES, VerlKey
from verl.compat.pettingllms import PETTINGLLMS_KEYS
from verl.compat.values import PER_AGENT
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.command_line import KEYS, SECTIONS, compose_config, with_preset_note
from verl.trainer.plan.derived_values import resolve_defaults
from verl.utils.names import value_at

FACTS = json.loads((Path(__file__).parent / "upstream_commands.json").read_text(encoding="utf-8"))
VERL = next(commands for source, commands in FACTS.items() if "verl-project" in source)
DR_MAS = next(commands for source, commands in FACTS.items() if "DrMAS" in source)
ALONE = ["agent.orchestra_type=single", "agent.agent_ids=[Single Agent]", "env.env_name=math"]
FULLY_ASYNC, CORRECTION = "async_training.mode=fully_async", "algorithm.rollout_correction.rollout_is"
REFUSED = {
    "grpo_trainer/run_qwen2-7b_math_megatron_fsdp.sh": "FSDP2 is the one training engine",
    "profile/run_qwen3_8b_npu_profile_e2e.sh": "global_profiler.tool; verl's key, here global_profiler.steps:",
}


def test_the_facts_are_those_of_37_and_13_scripts() -> None:
    assert [len(commands) for commands in FACTS.values()] == [37, 13]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """What the checks read of a model and of an adapter that a command takes from the disk."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}'
    )
    (tmp_path / "adapter_model.safetensors").touch()
    return dict.fromkeys(
        ("actor_rollout_ref.model.path", "actor_rollout_ref.model.lora_adapter_path"), tmp_path
    )


@pytest.mark.parametrize("script", VERL)
def test_the_keys_of_an_example_of_verl_pass_every_check_or_are_refused_by_one_line(
    script: str, folders: dict[str, Path]
) -> None:
    typed = [o.split("=", 1) for o in get_args_parser().parse_args(VERL[script]).overrides]
    given = [
        f"{key}={folders[key] if key in folders and value.startswith('/home/') else value}"
        for key, value in typed
    ]
    if script in REFUSED:
        with pytest.raises(ConfigError) as refused:
            compose_config(given)
        assert REFUSED[script] in str(refused.value) and "\n" not in str(refused.value)
        return
    config = compose_config(given)
    resolve_defaults(config)
    resolve(config)
    settings = dict(o.lstrip("+").split("=", 1) for o in given)
    assert (config.agent.orchestra_type, config.agent.agent_ids, config.env.env_name) == (
        "single",
        ["Single Agent"],
        "data_source",
    )
    assert config.env.rollout.n == int(settings.get("actor_rollout_ref.rollout.n", 1))
    assert config.algorithm.adv_estimator == settings["algorithm.adv_estimator"]
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == int(
        settings["actor_rollout_ref.actor.ppo_mini_batch_size"]
    )


@pytest.mark.parametrize("script", DR_MAS)
def test_the_keys_of_an_example_of_dr_mas_pass_every_check(script: str) -> None:
    given = DR_MAS[script]
    config = compose_config(given)
    resolve_defaults(config)
    resolve(config)
    settings = dict(o.lstrip("+").split("=", 1) for o in given)
    assert config.algorithm.adv_estimator == settings["algorithm.adv_estimator"]
    grouped = settings["algorithm.adv_estimator"] != "gae"
    assert (
        not grouped
        or config.algorithm.group_by == ["uid", "agent_id"][: 1 + ("algorithm.group_by_agent_id" in settings)]
    )
    assert (
        config.env.params.get("url") == settings.get("env.search.search_url", "").strip("'")
        or "search" not in script
    )
    assert config.actor_rollout_ref.actor.entropy_coeff == float(
        settings.get("actor_rollout_ref.actor.entropy_coeff", 0.001)
    )
    assert (config.agent.specialization == "lora") == ("lora" in script)


def test_keys_are_translated_and_defaults_are_verls() -> None:
    config = compose_config(
        [
            "actor_rollout_ref.rollout.n=5",
            "critic.model.fsdp_config.model_dtype=bf16",
            "trainer.logger=console",
        ]
    )
    assert (config.env.rollout.n, config.critic.fsdp.model_dtype, config.trainer.logger) == (
        5,
        "bf16",
        ["console"],
    )
    assert (config.algorithm.adv_estimator, config.trainer.total_epochs, config.data.train_batch_size) == (
        "gae",
        30,
        1024,
    )


@pytest.mark.parametrize("epochs", [[], ["trainer.total_epochs=15"]])
def test_epochs_of_a_command_of_verl_are_left_out_beside_a_number_of_steps(epochs: list[str]) -> None:
    command = ["actor_rollout_ref.rollout.n=5", "actor_rollout_ref.model.path=owner/model", *epochs]
    config = compose_config([*command, "trainer.total_training_steps=10"])
    resolve(config)
    assert (config.trainer.total_epochs, config.trainer.total_training_steps) == (1, 10)


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ("optim.clip_grad=[1.0,2.0]", "grad_clip=[1.0,2.0]"),
        ("optim.warmup_style=[cosine,constant]", "optim.lr_scheduler_type=[cosine,constant]"),
    ],
)
def test_a_list_of_values_stays_one_per_agent(theirs: str, here: str) -> None:
    own = "agent.agent_specific_parameters.actor."
    assert translate([f"{own}{theirs}", *ALONE]).overrides == [f"{own}{here}", *ALONE]


def test_a_command_in_the_keys_of_this_package_stays_as_it_is() -> None:
    given = ["trainer.logger=[console]", "env.rollout.n=4", "algorithm.gamma=0.9"]
    assert (translate(given).overrides, translate(given).warning()) == (given, "")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("actor_rollout_ref.actor.strategy=megatron", "FSDP2 is the one training engine"),
        ("trainer.logger=swanlab", "swanlab"),
        ("actor_rollout_ref.rollout.ignore_eos=true", "a reply ends at the model's end token"),
        ("algorithm.use_pf_ppo=true", "rows are not resampled"),
    ],
)
def test_a_value_that_would_change_the_result_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose_config([override, "data.truncation=error"])


@pytest.mark.parametrize(("function", "params"), [("null", {}), ("reward.py", {"graded": False})])
def test_a_reward_function_replaces_the_reward_by_data_source(function: str, params: dict[str, bool]) -> None:
    config = compose_config(["actor_rollout_ref.rollout.n=5", f"custom_reward_function.path={function}"])
    assert (config.env.env_name, config.env.params) == ("data_source", params)


def test_a_team_that_is_named_keeps_its_environment() -> None:
    assert compose_config(["actor_rollout_ref.rollout.n=5", "env.env_name=math"]).env.env_name == "math"


def test_messages_name_the_setting_as_typed() -> None:
    given = ["actor_rollout_ref.rollout.n=many"]
    with pytest.raises(ConfigError) as refused:
        compose_config(given)
    assert "set by actor_rollout_ref.rollout.n=many" in with_preset_note(str(refused.value), given)


def test_one_warning_lists_what_was_translated() -> None:
    said = translate(
        ["actor_rollout_ref.rollout.n=5", "data.truncation=left", "data.return_raw_chat=True"]
    ).warning()
    assert "actor_rollout_ref.rollout.n=5: env.rollout.n=5" in said
    assert "data.truncation=left" in said and "return_raw_chat" not in said


@pytest.mark.parametrize(
    ("override", "listed"),
    [
        ("trainer.log_val_generations=10", True),
        ("trainer.log_val_generations=0", False),
        ("model_engine=dp", False),
        ("actor_rollout_ref.rollout.profiler.enable=False", False),
        ("actor_rollout_ref.rollout.profiler.enable=True", True),
        ("global_profiler.relocate_results=True", False),
        ("actor_rollout_ref.rollout.profiler.ranks=[0,1]", False),
        ("actor_rollout_ref.ref.profiler.enable=False", False),
        ("actor_rollout_ref.ref.profiler.all_ranks=True", False),
        ("actor_rollout_ref.actor.profiler.tool=torch", False),
        ("critic.profiler.tool_config.npu.level=level1", False),
        ("critic.profiler.finish_hook_cmd=null", False),
        ("global_profiler.global_tool_config.nsys.discrete=False", False),
    ],
)
def test_what_scripts_of_verl_say_beside_the_algorithm_is_taken(override: str, listed: bool) -> None:
    command = translate([override])
    assert command.overrides == [] and bool(command.listed) == listed


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model_engine=veomni", "FSDP2 is the one training engine"),
        ("actor_rollout_ref.ref.profiler.enable=True", "here actor_rollout_ref.actor.profiler.ranks"),
        ("actor_rollout_ref.actor.profiler.tool=npu", "torch is the one profiler"),
        ("critic.profiler.tool_config.torch.schedule.active=2", "whole steps are recorded"),
        ("global_profiler.finish_hook_cmd=upload", "no command is run after the last step"),
    ],
)
def test_another_engine_or_profiler_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose_config([override, "data.truncation=error"])


PROFILER = [
    "actor_rollout_ref.actor.profiler.enable={0}", "actor_rollout_ref.actor.profiler.all_ranks=True",
    "critic.profiler.enable={0}",
    "actor_rollout_ref.ref.profiler.enable={0}",
    "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[stack]",
    "actor_rollout_ref.rollout.profiler.enable={0}",
    "actor_rollout_ref.actor.profiler.tool_config.torch.discrete=True",
    "global_profiler.profile_continuous_steps=True", "global_profiler.save_path=traces",
    "actor_rollout_ref.model.path=some/model",
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "steps"), [("torch", "[1,2]"), ("null", "null"), ("nsys", "null"), ("npu", "[]")]
)
def test_settings_of_a_profiler_are_taken_and_say_nothing_while_no_step_is_recorded(
    tool: str, steps: str
) -> None:
    on = tool == "torch"
    given = [
        f"global_profiler.tool={tool}",
        f"global_profiler.steps={steps}",
        *(setting.format(on) for setting in PROFILER),
    ]
    config = compose_config(given)
    resolve_defaults(config)
    resolve(config)
    worker = config.actor_rollout_ref.actor.profiler
    assert (worker.ranks, worker.contents) == (("all", ["stack"]) if on else ([], []))
    assert (config.global_profiler.steps, config.global_profiler.save_path) == (
        ([[1, 2]], "traces") if on else (None, None)
    )


def test_another_profiler_is_refused_by_a_line_that_names_torch() -> None:
    with pytest.raises(
        ConfigError, match=r"global_profiler\.tool; verl's key, .*: torch is the one profiler"
    ):
        compose_config(["global_profiler.tool=nsys", "global_profiler.steps=[3]", "data.truncation=error"])


def test_values_that_say_what_is_so_anyway_are_taken_in_silence() -> None:
    values = (
        "actor.strategy=fsdp2",
        "ref.strategy=fsdp2",
        "actor.use_torch_compile=False",
        "rollout.calculate_log_probs=True",
    )
    given = [
        f"actor_rollout_ref.{value}"
        for value in (*values, "rollout.enable_chunked_prefill=True", "actor.optim.lr=null")
    ]
    own = f"{PER_AGENT}.actor.optim.lr=[1e-6]"
    for silent in (
        *given,
        "critic.strategy=fsdp2",
        "data.return_raw_chat=True",
        "data.truncation=error",
        "trainer.logger=console",
    ):
        assert translate([silent, own, *ALONE]).warning() == "", silent
        assert silent not in translate([silent, own]).warning()
    assert "data.truncation=left" in translate(["data.truncation=left", *ALONE]).warning()


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        (["agent.model_sharing=True"], "agent.specialization", "prompt"),
        (["agent.model_sharing=false"], "agent.specialization", "full"),
        (["agent.model_sharing=false", "agent.specialization=lora"], "agent.specialization", "lora"),
        (["{actor}.use_invalid_action_penalty=true"], "{actor}.invalid_action_penalty_coef", 0.1),
        (
            ["{actor}.use_invalid_action_penalty=true", "{actor}.invalid_action_penalty_coef=0.3"],
            "{actor}.invalid_action_penalty_coef",
            0.3,
        ),
        (
            ["{actor}.use_invalid_action_penalty=false", "{actor}.invalid_action_penalty_coef=0.3"],
            "{actor}.invalid_action_penalty_coef",
            0.0,
        ),
        (["{actor}.use_adaptive_ppo_mini_batch_size=true"], "{actor}.ppo_mini_update_num", 10),
        (
            ["{actor}.use_adaptive_ppo_mini_batch_size=true", "{actor}.ppo_mini_update_num=3"],
            "{actor}.ppo_mini_update_num",
            3,
        ),
        (
            ["{actor}.use_adaptive_ppo_mini_batch_size=False", "{actor}.ppo_mini_update_num=3"],
            "{actor}.ppo_mini_update_num",
            None,
        ),
    ],
)
@pytest.mark.parametrize("marker", [[], ["env.seed=3"]])
def test_a_switch_of_dr_mas_becomes_the_value_of_the_key_beside_it(
    marker: list[str], typed: list[str], key: str, value: object
) -> None:
    actor = "actor_rollout_ref.actor"
    overrides = [override.format(actor=actor) for override in typed]
    config = compose_config([*overrides, *marker])
    assert value_at(config, key.format(actor=actor)) == value
    assert config.data.train_batch_size == (1024 if marker else 16)


ACTOR, OWN_ACTOR = "actor_rollout_ref.actor", f"{PER_AGENT}.actor"
PENALTY = ("use_invalid_action_penalty", "invalid_action_penalty_coef")
UPDATES = ("use_adaptive_ppo_mini_batch_size", "ppo_mini_update_num")
MARKERS = pytest.mark.parametrize("marker", [[], ["env.seed=3"]])


@MARKERS
@pytest.mark.parametrize(
    ("typed", "number"),
    [
        (["critic.{}=false"], None),
        (["critic.{}=false", "critic.ppo_mini_update_num=3"], None),
        (["critic.{}=true"], 10),
        (["critic.{}=true", "critic.ppo_mini_update_num=3"], 3),
    ],
)
def test_a_switch_of_the_critic_is_its_own(marker: list[str], typed: list[str], number: int | None) -> None:
    policy = [f"{ACTOR}.{UPDATES[0]}=true", f"{ACTOR}.{UPDATES[1]}=4", "algorithm.adv_estimator=gae"]
    config = compose_config([*policy, *marker, *(setting.format(UPDATES[0]) for setting in typed)])
    assert (config.actor_rollout_ref.actor.ppo_mini_update_num, config.critic.ppo_mini_update_num) == (
        4,
        number,
    )


@MARKERS
@pytest.mark.parametrize(
    ("names", "typed", "values"),
    [
        (PENALTY, ["own.switch=[true,false]"], [0.1, 0.0]),
        (PENALTY, ["own.switch=[True,null]"], [0.1, None]),
        (PENALTY, ["own.switch=[true,false]", "common.value=0.3"], [0.3, 0.0]),
        (PENALTY, ["own.switch=[true,null]", "common.switch=false", "common.value=0.3"], [0.3, None]),
        (PENALTY, ["own.switch=[true,true]", "own.value=[0.2,null]"], [0.2, 0.1]),
        (PENALTY, ["own.switch=[true,false]", "own.value=[0.2,0]"], [0.2, 0.0]),
        (PENALTY, ["common.switch=true", "own.value=[0.2,0.4]"], [0.2, 0.4]),
        (PENALTY, ["common.switch=false", "own.value=[0,null]"], [0, None]),
        (PENALTY, ["common.switch=false", "own.switch=[true,true]", "own.value=[0.2,0.4]"], [0.2, 0.4]),
        (UPDATES, ["own.switch=[true,true]"], [10, 10]),
        (UPDATES, ["own.switch=[true,false]"], [10, None]),
        (UPDATES, ["own.switch=[true,false]", "common.switch=false", "common.value=3"], [3, None]),
        (UPDATES, ["own.switch=[true,null]", "own.value=[2,null]"], [2, None]),
        (UPDATES, ["common.switch=true", "own.value=[2,4]"], [2, 4]),
    ],
)
def test_a_switch_of_agents_becomes_their_values(
    marker: list[str], names: tuple[str, str], typed: list[str], values: list[object]
) -> None:
    config = compose_config([*_in_full(names, typed), *marker])
    assert config.agent.agent_specific_parameters == {"actor": {names[1]: values}}


OFF = [
    (["common.switch=false"], 0),
    (["own.switch=[true,false]"], 0),
    (["common.switch=false", "own.switch=[true,null]"], 0),
]


@MARKERS
@pytest.mark.parametrize(
    ("names", "value", "switches", "first"),
    [
        *((PENALTY, "[0.1,0.2]", *off) for off in OFF),
        *((UPDATES, "[2,4]", *off) for off in OFF),
        # null, the number of updates for off, stands for the common value: the next test
        (PENALTY, "[0.1,0.2]", ["common.switch=true", "own.switch=[false,false]"], 1),
    ],
)
def test_a_switch_that_is_off_beside_a_value_of_an_agent_is_an_error_that_names_both(
    marker: list[str], names: tuple[str, str], value: str, switches: list[str], first: int
) -> None:
    own_value = _in_full(names, [f"own.value={value}"])
    typed = _in_full(names, switches)
    for order in ([*typed, *own_value], [*own_value, *typed]):
        with pytest.raises(ConfigError) as refused:
            compose_config([*order, *marker])
        assert f"{typed[first]} and {own_value[0]} set the same key" in str(refused.value)


@pytest.mark.parametrize(
    ("names", "typed", "new"),
    [
        (UPDATES, ["own.switch=[true,false]", "common.value=3"], "ppo_mini_update_num: one number per agent"),
        (UPDATES, ["own.switch=[false,true]", "common.switch=true"], "ppo_mini_update_num: one number per"),
        (UPDATES, ["own.switch=true"], "ppo_mini_update_num: one number per agent, such as [10,null]"),
        (PENALTY, ["own.switch=true"], "invalid_action_penalty_coef: one number per agent, such as [0.1,0]"),
        (PENALTY, ["own.switch=[yes,1.5]"], "invalid_action_penalty_coef: one number per agent"),
        (PENALTY, ["own.switch=[true,true]", "own.value=[1]"], "invalid_action_penalty_coef: one number per"),
    ],
)
def test_a_switch_of_agents_that_has_no_values_names_the_key_and_the_list(
    tmp_path: Path, names: tuple[str, str], typed: list[str], new: str
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    overrides = _in_full(names, typed)
    with pytest.raises(ConfigError) as refused:
        resolve(
            compose_config([*overrides, "agent.agent_ids=[A,B]", f"actor_rollout_ref.model.path={tmp_path}"])
        )
    assert f"here {OWN_ACTOR}.{new}" in str(refused.value) and f"{OWN_ACTOR}.{names[0]}=" in str(
        refused.value
    )


def _in_full(names: tuple[str, str], typed: list[str]) -> list[str]:
    """Return settings with the names of a switch and its value for `own.switch`, `common.value`, ..."""
    sections = {"own": OWN_ACTOR, "common": ACTOR}
    leaves = dict(zip(("switch", "value"), names, strict=True))
    pairs = [setting.split("=", 1) for setting in typed]
    return [
        f"{sections[key.partition('.')[0]]}.{leaves[key.partition('.')[2]]}={value}" for key, value in pairs
    ]


@pytest.mark.parametrize("section", ["rollout", "ref"])
def test_a_key_is_not_left_out_while_a_key_that_follows_it_has_an_effect(
    section: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    leader = f"{ACTOR}.ppo_max_token_len_per_gpu=4096"
    given = [f"{ACTOR}.use_dynamic_bsz=False", leader, "data.truncation=error", f"{ACTOR}.ppo_epochs=2",
             f"actor_rollout_ref.model.path={tmp_path}", f"{ACTOR}.use_kl_loss=True"]  # fmt: skip
    follower = f"actor_rollout_ref.{section}.log_prob_use_dynamic_bsz=True"
    config = compose_config([*given, follower])
    assert getattr(config.actor_rollout_ref, section).log_prob_max_token_len_per_gpu == 4096
    resolve_defaults(config)
    resolve(config)
    assert compose_config(given).actor_rollout_ref.actor.ppo_max_token_len_per_gpu is None


@pytest.mark.parametrize(
    "key",
    ["data.max_response_length", "data.max_prompt_length", "actor_rollout_ref.rollout.response_length",
     "trainer.num_threads", "actor_rollout_ref.actor.use_kl_loss", f"{ACTOR}.ppo_mini_update_num"],
)  # fmt: skip
def test_the_warning_has_no_default_that_means_the_value_of_another_key(key: str) -> None:
    value = "False" if "use_kl" in key else "null" if "update_num" in key else "64"
    said = translate([f"{key}={value}", "data.truncation=error"]).warning()
    assert "=null" not in said and "num_threads=0" not in said


def test_a_critic_follows_the_policy_only_where_it_does_in_verl() -> None:
    actor = "actor_rollout_ref.actor"
    changed = {"ppo_epochs": 2, "grad_clip": 3.0, "ppo_mini_update_num": 4}
    overrides = [f"{actor}.{name}={value}" for name, value in changed.items()]
    values = {
        marker: [getattr(compose_config([*overrides, marker]).critic, name) for name in changed]
        for marker in ("algorithm.adv_estimator=gae", "data.truncation=error", "env.seed=3")
    }
    assert [*values.values()] == [[2, 3.0, 4], [2, 1.0, None], [2, 1.0, None]]


def test_a_switch_of_dr_mas_that_contradicts_its_key_is_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError, match=r"agent\.model_sharing=true and agent\.specialization=lora"):
        compose_config(["agent.model_sharing=true", "agent.specialization=lora"])
    with pytest.raises(ConfigError, match=r"agent\.model_sharing; verl's key, here agent\.specialization"):
        compose_config(["agent.model_sharing=some"])


def test_a_note_is_about_one_key() -> None:
    given = ["actor_rollout_ref.rollout.n=5"]
    message = "algorithm.adv_estimator=gae with env.rollout.n=5 and trainer.total_epochs=30: too much"
    assert with_preset_note(message, given) == f"{message} (algorithm.adv_estimator=gae is a default of verl)"
    assert (
        with_preset_note("env.rollout.n_more is not env.rollout", given)
        == "env.rollout.n_more is not env.rollout"
    )


@pytest.mark.parametrize(
    ("marker", "upstream"), [("data.truncation=left", "verl"), ("env.seed=3", "Dr. MAS")]
)
def test_the_warning_names_the_project_of_the_keys(marker: str, upstream: str) -> None:
    assert translate([marker, *ALONE]).warning().startswith(f"keys of {upstream} (")


@pytest.mark.parametrize("marker", ["env.seed=3", "data.truncation=error"])
@pytest.mark.parametrize(
    "size", ["actor_rollout_ref.actor.ppo_mini_batch_size=64", "critic.ppo_mini_batch_size=64"]
)
def test_the_warning_says_that_a_mini_batch_of_dr_mas_counts_rows(marker: str, size: str) -> None:
    said = translate([marker, size, *ALONE]).warning()
    assert (f"{size}: counts rows there, tasks here; " in said) == (marker == "env.seed=3")
    adaptive = "actor_rollout_ref.actor.use_adaptive_ppo_mini_batch_size=true"
    assert "counts rows" not in translate([marker, adaptive, *ALONE]).warning()


@pytest.mark.parametrize("first", [0, 1])
def test_a_setting_that_contradicts_its_translation_is_an_error_that_names_both(first: int) -> None:
    pair = ["actor_rollout_ref.rollout.n=5", "env.rollout.n=8"]
    with pytest.raises(ConfigError) as refused:
        compose_config([pair[first], *ALONE, f"+{pair[1 - first]}"])
    assert all(setting in str(refused.value) for setting in pair) and "leave out one" in str(refused.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("actor_rollout_ref.rollout.n=5", "env.rollout.n='5'"),
        ("critic.optim.clip_grad=5", "critic.grad_clip=5.0"),
        ("trainer.logger=['console', \"jsonl\"]", "trainer.logger=[console,jsonl]"),
    ],
)
def test_a_setting_may_say_the_same_as_its_translation(theirs: str, ours: str) -> None:
    assert translate([theirs, ours, "data.truncation=error", *ALONE]).contradictions == []


@pytest.mark.parametrize("entry", PETTINGLLMS_KEYS, ids=lambda entry: entry.name)
def test_a_key_of_pettingllms_names_keys_that_exist_or_says_why_there_are_none(entry: VerlKey) -> None:
    assert [key for key in entry.here if key not in KEYS and key not in SECTIONS] == []
    assert entry.here or entry.note not in ("", "the same")


def test_a_key_of_pettingllms_is_listed_once() -> None:
    names = [entry.name for entry in PETTINGLLMS_KEYS]
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize(
    "entry", [*VERL_KEYS, *VERL_VALUES, *VERL_MEANINGS, *TWINS], ids=lambda entry: entry.name
)
def test_an_entry_says_what_becomes_of_a_value(entry: VerlKey) -> None:
    assert (entry.in_words() == "refused") == (entry.take is None)
    assert re.match(r"refused$|translated|left out|taken: ", entry.in_words())


def test_a_reward_model_gives_the_reward_of_the_team() -> None:
    config = compose_config(VERL["grpo_trainer/run_mistral_nemo_12b_skyworkrm_fsdp.sh"])
    model = config.reward.model
    assert (model.kind, model.path) == ("sequence_classification", "Skywork/Skywork-Reward-Llama-3.1-8B")
    assert (model.scope, model.combine, model.max_length, config.env.params) == (
        "episode",
        "replace",
        8192 + 4096,
        {"graded": False},
    )
    with pytest.raises(ConfigError, match=r"reward\.reward_model\.enable"):
        compose_config(
            [
                "reward.reward_model.enable=true",
                "reward.custom_reward_function.path=f.py",
                "data.truncation=error",
            ]
        )


@pytest.mark.parametrize(
    ("given", "nodes", "gpus"),
    [
        ({"nnodes": 0, "n_gpus_per_node": 2}, 1, 0),
        ({"n_gpus_per_node": 2}, 1, 0),
        ({"nnodes": 2, "n_gpus_per_node": 4}, 2, 4),
        ({"nnodes": 1}, 1, 8),
    ],
)
def test_engines_have_the_gpus_that_they_have_in_verl(given: dict[str, int], nodes: int, gpus: int) -> None:
    engine = [
        "actor_rollout_ref.model.path=owner/model",
        *(f"actor_rollout_ref.rollout.{key}={value}" for key, value in given.items()),
    ]
    config = compose_config([*engine, "actor_rollout_ref.rollout.free_cache_engine=false"])
    assert (config.rollout.nnodes, config.rollout.n_gpus_per_node) == (nodes, gpus)
    assert config.actor_rollout_ref.rollout.free_cache_engine == bool(gpus), (
        "left out where engines never free it"
    )
    apart = [*engine, "actor_rollout_ref.hybrid_engine=false"]
    if gpus:
        assert compose_config(apart).rollout == config.rollout
    else:
        with pytest.raises(ConfigError, match=r"hybrid_engine; verl's key, here rollout\.n_gpus_per_node"):
            compose_config(apart)


def test_an_engine_spans_the_gpus_of_a_node_of_the_engines() -> None:
    engine = {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 4, "name": "vllm"}
    config = compose_config([f"actor_rollout_ref.rollout.{key}={value}" for key, value in engine.items()])
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 2


@pytest.mark.parametrize("mini_batch", ["actor_rollout_ref.actor", "agent.agent_specific_parameters.actor"])
def test_the_mini_batches_that_a_step_fetches_at_once_are_those_of_its_tasks(mini_batch: str) -> None:
    given = [
        "async_training.require_batches=2",
        f"{mini_batch}.ppo_mini_batch_size=8",
        "data.train_batch_size=16",
        *ALONE,
    ]
    command = translate(given)
    assert (command.overrides, command.listed) == (given[1:], [])
    advice = r"require_batches.*here data\.train_batch_size: the tasks of a step, in every mode: require_batches \* ppo_mini_batch_size"
    for others in (
        ["data.train_batch_size=32", given[1]],
        ["data.train_batch_size=16", f"{mini_batch}.ppo_mini_batch_size=[8,4]"],
        [],
    ):
        with pytest.raises(ConfigError, match=advice):
            compose_config([given[0], *others, *ALONE])


@pytest.mark.parametrize(
    ("given", "tasks", "mini_batch"),
    [
        (["async_training.require_batches=2", "actor_rollout_ref.actor.ppo_mini_batch_size=8"], 16, 8),
        (
            [
                "async_training.require_batches=2",
                "actor_rollout_ref.actor.ppo_mini_batch_size=8",
                "data.train_batch_size=0",
            ],
            16,
            8,
        ),
        (["async_training.require_batches=2"], 512, 256),
        (["async_training.require_batches=0", "data.train_batch_size=24", *ALONE], 24, 0),
        (["async_training.require_batches=1", "data.train_batch_size=24", *ALONE], 24, 0),
        (["async_training.require_batches=2", "data.train_batch_size=24", *ALONE], 24, 12),
    ],
)
def test_what_is_missing_of_the_sizes_of_a_step_follows(
    given: list[str], tasks: int, mini_batch: int
) -> None:
    config = compose_config([*given, FULLY_ASYNC, f"{CORRECTION}=token"])
    assert (config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size) == (
        tasks,
        mini_batch,
    )


def test_a_command_of_fully_asynchronous_training_is_translated() -> None:
    """Of verl 0.9 and of versions before; counts of transfers of weights become those of steps."""
    given = [
        "data.train_batch_size=0", "data.gen_batch_size=1", "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "trainer.test_freq=10",
        "trainer.save_freq=-1", "rollout.n_gpus_per_node=4", "rollout.total_rollout_steps=51500",
        "rollout.n=4", "rollout.total_epochs=2",
        "async_training.staleness_threshold=0.1", "async_training.trigger_parameter_sync_step=4",
        "async_training.require_batches=4",
        "async_training.partial_rollout=False", "async_training.use_trainer_do_validate=False",
        "rollout.test_freq=10",
        "async_training.use_dynamic_resource_scheduling=False",
        "async_training.dynamic_schedule_policy=default",
        "async_training.concurrent_samples_per_replica=16", "async_training.use_rollout_log_probs=True",
        "async_training.compute_prox_log_prob=False", "async_training.checkpoint_engine.enable=True",
        "async_training.checkpoint_engine.device_buffer_size_M=128",
        "async_training.checkpoint_engine.overlap_broadcast_and_consume=False",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
        "actor_rollout_ref.rollout.standalone_gpu_memory_utilization=0.8",
        "actor_rollout_ref.actor.use_rollout_log_probs=True",
        "actor_rollout_ref.rollout.scheduling_policy=priority",
    ]  # fmt: skip
    config = compose_config([*given, FULLY_ASYNC])
    assert (config.data.train_batch_size, config.trainer.total_training_steps) == (128, 400)
    assert (config.trainer.test_freq, config.trainer.save_freq) == (40, -1)
    assert config.algorithm.rollout_correction.bypass_mode and not config.async_training.partial_rollout
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.update_bucket_mb, rollout.gpu_memory_utilization) == (128, 0.8)


@pytest.mark.parametrize(
    ("given", "bypass"),
    [
        (["use_rollout_log_probs=true"], True),
        (["use_rollout_log_probs=false"], False),
        (["use_rollout_log_probs=true", "compute_prox_log_prob=true"], False),
        (["compute_prox_log_prob=true", "trigger_parameter_sync_step=1"], False),
    ],
)
def test_old_log_probs_are_of_the_weights_of_verl(given: list[str], bypass: bool) -> None:
    command = translate([*ALONE, *(f"async_training.{setting}" for setting in given)])
    values = {override for override in command.overrides if "bypass_mode" in override}
    assert (
        values == {f"algorithm.rollout_correction.bypass_mode={str(bypass).lower()}"}
        and not command.contradictions
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["async_training.compute_prox_log_prob=true", "async_training.trigger_parameter_sync_step=2"],
            "first step after a transfer",
        ),
        (
            ["async_training.use_dynamic_resource_scheduling=true"],
            "here rollout.n_gpus_per_node: engines have their devices, or share",
        ),
        (
            ["data.gen_batch_size=1", "data.truncation=error"],
            "here data.train_batch_size: filter_groups collects",
        ),
        (
            [
                "rollout.total_rollout_steps=100",
                "actor_rollout_ref.actor.ppo_mini_batch_size=64",
                "data.train_batch_size=65",
            ],
            "tasks of the",
        ),
        (
            ["rollout.total_rollout_steps=10", "actor_rollout_ref.actor.ppo_mini_batch_size=64"],
            "here trainer.total_training_steps: tasks",
        ),
    ],
)
def test_what_means_something_else_is_refused_with_the_reason(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose_config(given)


def test_frequencies_are_of_steps_unless_weights_of_several_are_sent_at_once() -> None:
    for trigger, expected in (("1", "trainer.test_freq=10"), ("3", "trainer.test_freq=30")):
        given = [
            "data.truncation=error",
            "trainer.test_freq=10",
            f"async_training.trigger_parameter_sync_step={trigger}",
        ]
        assert [o for o in translate(given).overrides if "test_freq" in o] == [expected]
        assert "trainer.test_freq=10" in translate([*given[1:], *ALONE]).overrides, (
            "a command of this package"
        )


def test_a_command_that_names_a_team_keeps_the_defaults_here() -> None:
    assert compose_config([*ALONE, "data.truncation=error"]) == compose_config(ALONE)
    assert compose_config(["data.truncation=error"]).algorithm.adv_estimator == "gae"
    idle = compose_config([*ALONE, "data.truncation=error", "algorithm.kl_ctrl.horizon=5"])
    assert idle.algorithm.kl_ctrl.horizon == 5  # a key without effect is left to the checks of the run
