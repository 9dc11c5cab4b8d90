"""A configuration is made of defaults that Hydra has composed once, and is the one that Hydra composes."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan import command_line
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.earlier_files import FORMER
from verl.trainer.plan.earlier_files import SWITCHES as EARLIER
from verl.utils.names import value_at

TEAM = ["agent.agent_ids=[Solver Agent,Verifier Agent]", "agent.orchestra_type=math", "env.rollout.n=4"]


@pytest.mark.parametrize(
    "given",
    [
        [],
        TEAM,
        [*TEAM, "env.rollout.n=5", "trainer.default_local_dir=/tmp/a b"],
        ["algorithm.preset=dr_grpo", "actor_rollout_ref.actor.optim.lr=1e-6", "trainer.logger=[]"],
        ["+env.params={size: 4, names: [a, '1']}", "env.params.depth=2"],
        ["agent.orchestra.math.max_loop_num=3", "data.apply_chat_template_kwargs={enable_thinking: false}"],
        ["trainer.experiment_name='${trainer.project_name}_${env.rollout.n}'", "trainer.project_name='42'"],
    ],
)
def test_changed_defaults_are_what_hydra_composes(given: list[str]) -> None:
    overrides = command_line.prepare_overrides(given)
    changed = command_line._changed_defaults(overrides)
    whole = command_line._composed_by_hydra(overrides)
    assert changed is not None and changed == whole
    assert OmegaConf.is_struct(changed) and OmegaConf.is_struct(whole)
    assert OmegaConf.to_object(changed) == OmegaConf.to_object(whole) == command_line.compose_config(given)


def test_a_configuration_shares_nothing_with_the_next_one() -> None:
    first = command_line.compose_config(TEAM)
    first.agent.agent_ids.append("Another Agent")
    first.env.params["size"] = 3
    again = command_line.compose_config(TEAM)
    assert again.agent.agent_ids == ["Solver Agent", "Verifier Agent"] and again.env.params == {}
    assert command_line.compose_config([]) == RunConfig()


@pytest.mark.parametrize(
    "overrides",
    [
        ["env.rollout.n=1,2"],
        ["hydra.run.dir=/tmp"],
        ["hydra/job_logging=default"],
        ["trainer.nowhere=1"],
        ["trainer.total_training_steps=many"],
        ["trainer.logger=[jsonl"],
        ["a@b=c"],
    ],
)
def test_what_hydra_has_to_see_itself_is_left_to_it(overrides: list[str]) -> None:
    assert command_line._changed_defaults(overrides) is None
    if not overrides[0].startswith("hydra"):
        with pytest.raises(HydraException):
            command_line._compose(overrides)


def test_a_saved_configuration_is_what_omegaconf_writes(tmp_path: Path) -> None:
    config = command_line.compose_config(
        [*TEAM, "env.params={size: '4', name: 'é: #', none: null, texts: ['on', '1e3', ''], far: 1e-9}"]
    )
    command_line.save_config(config, tmp_path / "ours.yaml")
    OmegaConf.save(OmegaConf.create(asdict(config)), tmp_path / "theirs.yaml")
    assert (tmp_path / "ours.yaml").read_bytes() == (tmp_path / "theirs.yaml").read_bytes()
    assert command_line.load_config(tmp_path / "ours.yaml") == config


@pytest.mark.parametrize("on", [True, False])
def test_a_file_of_a_version_with_switches_is_read_as_the_values_that_they_became(
    tmp_path: Path, on: bool
) -> None:
    saved = asdict(command_line.compose_config(TEAM))
    saved["agent"] |= {"model_sharing": on, "specialization": None}
    saved["actor_rollout_ref"]["actor"] |= {
        "use_invalid_action_penalty": on,
        "invalid_action_penalty_coef": 0.1,
        "use_adaptive_ppo_mini_batch_size": on,
        "ppo_mini_update_num": 10,
    }
    saved["critic"] |= {"use_adaptive_ppo_mini_batch_size": on, "ppo_mini_update_num": 7}
    OmegaConf.save(OmegaConf.create(saved), tmp_path / "config.yaml")
    config = command_line.load_config(tmp_path / "config.yaml")
    actor = config.actor_rollout_ref.actor
    read = (actor.invalid_action_penalty_coef, actor.ppo_mini_update_num, config.critic.ppo_mini_update_num)
    assert (config.agent.specialization, *read) == (
        ("prompt", 0.1, 10, 7) if on else ("full", 0.0, None, None)
    )


@pytest.mark.parametrize("on", [True, False])
def test_a_file_with_switches_is_read_as_the_values_that_they_meant(tmp_path: Path, on: bool) -> None:
    numbers = {switch.number: 7 if switch.on.replace(".", "").isdigit() else switch.on for switch in EARLIER}
    switches = {switch.name: switch.words[0 if on else 1] for switch in EARLIER}
    config = read_former(tmp_path, numbers | switches)
    for switch in EARLIER:
        assert value_at(config, switch.number) == (numbers[switch.number] if on else switch.off)


def read_former(folder: Path, keys: dict[str, Any]) -> RunConfig:
    """The configuration of a file with some keys of earlier versions."""
    saved = OmegaConf.create(asdict(command_line.compose_config(TEAM)))
    for key, value in keys.items():
        OmegaConf.update(saved, key, value, force_add=True)
    OmegaConf.save(saved, folder / "config.yaml")
    return command_line.load_config(folder / "config.yaml")


ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"
PROFILER, FUNCTION = "critic.profiler", "reward.custom_reward_function"
EARLIER_FILES = [
    (
        {f"{OPTIM}.lr_warmup_steps": -1, f"{OPTIM}.lr_warmup_steps_ratio": 0.1},
        f"{OPTIM}.lr_warmup_steps",
        0.1,
    ),
    ({f"{OPTIM}.lr_warmup_steps": 7, f"{OPTIM}.lr_warmup_steps_ratio": 0.1}, f"{OPTIM}.lr_warmup_steps", 7),
    ({f"{OPTIM}.lr_warmup_steps": -1, f"{OPTIM}.lr_warmup_steps_ratio": 0.0}, f"{OPTIM}.lr_warmup_steps", 0),
    ({"trainer.resume_mode": "auto", "trainer.resume_from_path": None}, "trainer.resume_mode", "auto"),
    ({"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/a"}, "trainer.resume_mode", "/a"),
    (
        {f"{PROFILER}.enable": False, f"{PROFILER}.all_ranks": False, f"{PROFILER}.ranks": []},
        f"{PROFILER}.ranks",
        [],
    ),
    (
        {f"{PROFILER}.enable": True, f"{PROFILER}.all_ranks": False, f"{PROFILER}.ranks": []},
        f"{PROFILER}.ranks",
        [0],
    ),
    (
        {f"{PROFILER}.enable": True, f"{PROFILER}.all_ranks": True, f"{PROFILER}.ranks": []},
        f"{PROFILER}.ranks",
        "all",
    ),
    ({f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.clip_ratio_low": None}, f"{ACTOR}.clip_ratio_low", 0.1),
    ({f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.clip_ratio_high": 0.3}, f"{ACTOR}.clip_ratio_high", 0.3),
    (
        {"algorithm.group_by_agent_id": True, "algorithm.group_by": None},
        "algorithm.group_by",
        ["uid", "agent_id"],
    ),
    ({"algorithm.group_by_agent_id": False, "algorithm.group_by": None}, "algorithm.group_by", ["uid"]),
    ({"algorithm.group_by_agent_id": False, "algorithm.group_by": ["turn"]}, "algorithm.group_by", ["turn"]),
    ({"agent.team_command": [], "agent.team": "a:b"}, "agent.team", "a:b"),
    ({"agent.team_command": ["a", "b"], "agent.team": None}, "agent.team", ["a", "b"]),
    ({"trainer.check_engines": False, "trainer.check_memory": True}, "trainer.checks", ["memory"]),
    ({"reward.shaping": "binary", "reward.shaping_threshold": 2.0}, "reward.shaping_by", 2.0),
    ({"reward.shaping": "binary", "reward.shaping_gamma": 2.0}, "reward.shaping_by", None),
    ({"reward.shaping": "hop_discount", "reward.shaping_gamma": 0.5}, "reward.shaping_by", 0.5),
    ({f"{FUNCTION}.path": "f.py", f"{FUNCTION}.name": "score"}, f"{FUNCTION}.path", "f.py:score"),
    ({f"{FUNCTION}.path": None, f"{FUNCTION}.name": "compute_score"}, f"{FUNCTION}.path", None),
    ({"trainer.pool_sizes": {"a": 2}, "rollout.pool_sizes": {}}, "trainer.pool_sizes", {"a": 2}),
    (
        {"trainer.pool_sizes": {"a": 2}, "rollout.pool_sizes": {"a": 1, "b": 3}},
        "trainer.pool_sizes",
        {"a": [2, 1], "b": [0, 3]},
    ),
    (
        {
            "global_profiler.tool": "torch",
            "global_profiler.steps": [2, 1, 4],
            "global_profiler.profile_continuous_steps": True,
        },
        "global_profiler.steps",
        [[1, 2], 4],
    ),
    ({"global_profiler.tool": None, "global_profiler.steps": [1]}, "global_profiler.steps", None),
    ({"global_profiler.tool": "torch", "global_profiler.steps": [1]}, "global_profiler.steps", [1]),
]


def test_files_with_keys_that_are_one_now_are_read_as_before(tmp_path: Path) -> None:
    """As few files as hold all of `EARLIER_FILES`, with one value of each key."""
    cases = list(EARLIER_FILES)
    while cases:
        former: dict[str, Any] = {}
        read = []
        for case in list(cases):
            if not former.keys() & case[0].keys():
                former |= case[0]
                read.append(case)
                cases.remove(case)
        config = read_former(tmp_path, former)
        for then, name, value in read:
            assert value_at(config, name) == value, then


def test_own_values_of_keys_that_are_one_now_are_read_as_before(tmp_path: Path) -> None:
    saved = OmegaConf.create(asdict(command_line.compose_config([*TEAM, "agent.agent_ids=[A,B]"])))
    OmegaConf.update(saved, OPTIM, {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.5})
    ranges = {"clip_ratio": 0.1, "clip_ratio_low": None, "clip_ratio_high": 0.4}
    for name, value in ranges.items():
        OmegaConf.update(saved, f"{ACTOR}.{name}", value, force_add=True)
    own = {
        "actor": {"optim": {"lr_warmup_steps": [7, None]}, "clip_ratio": [0.3, None]},
        "rollout": {"val_kwargs": {"do_sample": [False, None]}},
    }
    OmegaConf.update(saved, "agent.agent_specific_parameters", own)
    OmegaConf.update(saved, "actor_rollout_ref.rollout.val_kwargs.do_sample", True, force_add=True)
    OmegaConf.save(saved, tmp_path / "config.yaml")
    config = command_line.load_config(tmp_path / "config.yaml")
    assert config.agent.agent_specific_parameters == {
        "actor": {"optim": {"lr_warmup_steps": [7, None]}, "clip_ratio_low": [0.3, None]},
        "rollout": {"val_kwargs": {"temperature": [0.0, None]}},
    }
    actor_config = config.actor_rollout_ref.actor
    assert actor_config.optim.lr_warmup_steps == 0.5
    assert (actor_config.clip_ratio_low, actor_config.clip_ratio_high) == (0.1, 0.4)


@pytest.mark.parametrize("name", FORMER)
def test_a_key_that_is_none_any_more_is_named_and_its_value_of_then_is_read(
    tmp_path: Path, name: str
) -> None:
    value, instead = FORMER[name]
    assert name not in command_line.KEYS
    with pytest.raises(ConfigError) as refused:
        command_line.check_override(f"{name}={value}")
    assert str(refused.value).startswith(f"{name} is no key any more: {instead}")
    saved = OmegaConf.create(asdict(command_line.compose_config(TEAM)))
    OmegaConf.update(saved, name, value, force_add=True)
    OmegaConf.save(saved, tmp_path / "config.yaml")
    assert command_line.load_config(tmp_path / "config.yaml") == command_line.compose_config(TEAM)
    OmegaConf.update(saved, name, "another", force_add=True)
    OmegaConf.save(saved, tmp_path / "config.yaml")
    with pytest.raises(ConfigError) as other:
        command_line.load_config(tmp_path / "config.yaml")
    assert f"{name}=another is of an earlier version and no key any more: {instead};" in str(other.value)
    assert "\n" not in str(other.value)


@pytest.mark.parametrize(("kind", "dtype", "loads"), [
    ("classifier", "fp32", True), ("classifier", "auto", False), (None, "auto", True),
])  # fmt: skip
def test_a_reward_model_never_changes_its_dtype_in_silence(
    tmp_path: Path, kind: str | None, dtype: str, loads: bool
) -> None:
    saved = asdict(command_line.compose_config([*TEAM, "actor_rollout_ref.rollout.dtype=fp32"]))
    saved["reward"]["model"] |= {"kind": kind, "path": "judge", "dtype": dtype}
    OmegaConf.save(OmegaConf.create(saved), tmp_path / "config.yaml")
    if loads:
        assert command_line.load_config(tmp_path / "config.yaml").actor_rollout_ref.rollout.dtype == "fp32"
        return
    with pytest.raises(ConfigError, match=r"reward\.model\.dtype=auto is of an earlier version"):
        command_line.load_config(tmp_path / "config.yaml")


def test_a_file_whose_address_of_a_server_had_no_effect_runs_programs_here(tmp_path: Path) -> None:
    saved = asdict(command_line.compose_config([*TEAM, "sandbox.url=http://localhost:8080"]))
    saved["sandbox"]["backend"] = "local"
    OmegaConf.save(OmegaConf.create(saved), tmp_path / "config.yaml")
    assert command_line.load_config(tmp_path / "config.yaml").sandbox.url == ""


def test_a_file_with_a_server_for_programs_names_no_backend(tmp_path: Path) -> None:
    saved = asdict(command_line.compose_config([*TEAM, "sandbox.url=http://localhost:8080"]))
    saved["sandbox"]["backend"] = "http"
    OmegaConf.save(OmegaConf.create(saved), tmp_path / "config.yaml")
    assert command_line.load_config(tmp_path / "config.yaml").sandbox.url == "http://localhost:8080"


SWITCHES = {
    "use_invalid_action_penalty": ("invalid_action_penalty_coef", 0.1, 0.3, 0.0),
    "use_adaptive_ppo_mini_batch_size": ("ppo_mini_update_num", 10, 3, None),
}


def read_switches(
    folder: Path, common: bool | None, own: dict[str, Any], switch: str, **agent: Any
) -> RunConfig:
    """The configuration of a file with a switch of all, and of single agents where `own` has it; the file
    has only what the switches change, so that it is read in a tenth of the time.
    """
    name, number, _, _ = SWITCHES[switch]
    actor = {name: number} | ({} if common is None else {switch: common})
    names = {"agent_ids": ["Solver Agent", "Verifier Agent"], "orchestra_type": "math"}
    saved = {
        "agent": names | {"agent_specific_parameters": {"actor": own}} | agent,
        "actor_rollout_ref": {"model": {"path": "owner/model"}, "actor": actor},
    }
    (folder / "config.yaml").write_text(json.dumps(saved))
    return command_line.load_config(folder / "config.yaml")


CHOICES = (None, True, False)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("frozen", [False, True])
def test_switches_of_agents_are_read_as_the_values_that_each_agent_had(
    tmp_path: Path, switch: str, common: bool, frozen: bool
) -> None:
    """Every pair of own switches, with and without own numbers; the second agent may be frozen,
    which then had no own values.
    """
    name, number, own_number, off = SWITCHES[switch]
    seconds = (None,) if frozen else CHOICES
    for switches in [None, *product(CHOICES, seconds)]:
        for numbers in [None, *product((None, own_number), (None,) if frozen else (None, own_number))]:
            own: dict[str, Any] = {} if switches is None else {switch: list(switches)}
            own |= {} if numbers is None else {name: list(numbers)}
            team = {"frozen": ["Verifier Agent"]} if frozen else {}
            config = read_switches(tmp_path, common, own, switch, **team)
            plan = resolve(config)
            for i, row in enumerate(plan.agents[: 1 if frozen else 2]):
                is_on = (switches or (None, None))[i]
                value = (numbers or (None, None))[i]
                expected = (
                    (number if value is None else value) if (common if is_on is None else is_on) else off
                )
                assert getattr(row.config.actor, name) == expected, (switches, numbers, i)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    "values", [True, [True], [True, False, None], ["yes", False], {"solver_agent": True}, [[True], False]]
)
def test_switches_of_agents_in_another_form_are_refused_by_one_line_with_the_present_key(
    tmp_path: Path, switch: str, values: Any
) -> None:
    with pytest.raises(
        ValueError, match=rf"config.yaml: .*actor\.{switch}=.*: expected a list of 2"
    ) as caught:
        read_switches(tmp_path, True, {switch: values}, switch)
    message = str(caught.value)
    assert message.endswith(f"agent.agent_specific_parameters.actor.{SWITCHES[switch][0]}")
    assert "\n" not in message


@pytest.mark.parametrize("switch", SWITCHES)
def test_own_values_in_a_file_of_this_version_stay(tmp_path: Path, switch: str) -> None:
    name, number, own_number, _ = SWITCHES[switch]
    own = {name: [number, own_number]}
    config = read_switches(tmp_path, None, own, switch)
    assert config.agent.agent_specific_parameters == {"actor": own}


@pytest.mark.parametrize("text", ["- a\n", "agent: word\n", "agent: {nothing: 1}\n", "{"])
def test_a_file_that_is_no_configuration_is_refused_by_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config.yaml is not a configuration.*") as caught:
        command_line.load_config(tmp_path / "config.yaml")
    assert "\n" not in str(caught.value)
