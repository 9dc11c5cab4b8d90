"""Presets: the keys a method stands for, whose values win, and what the user is told."""

import logging
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.plan.command_line import compose_config
from verl.trainer.plan.presets import (
    ACTOR,
    PRESETS,
    PresetError,
    apply_preset,
    describe_preset,
    expand_presets,
)

ROOT = Path(__file__).parents[3]


def resolved(*overrides: str) -> Any:
    """The config that the command line makes of `overrides`."""
    return compose_config(overrides)


def test_dapo_sets_what_the_paper_says() -> None:
    config = resolved("algorithm.preset=dapo")
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.28, "token-mean")
    assert config.algorithm.filter_groups.enable and config.reward.overlong_buffer.len == 0
    assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward


def test_at_grpo_samples_a_tree_and_compares_the_candidates_of_a_call() -> None:
    config = resolved("algorithm.preset=at_grpo")
    assert (config.rollout.sampling, config.rollout.tree.k, config.rollout.tree.select) == (
        "tree",
        4,
        "greedy",
    )
    assert config.algorithm.group_by == ["traj_uid", "agent_id", "turn", "call"]
    assert (config.reward.alpha, config.reward.team_scope) == (1.0, "call")


def test_dr_grpo_divides_neither_by_a_deviation_nor_by_a_length() -> None:
    config = resolved("algorithm.preset=dr_grpo")
    assert not config.algorithm.norm_adv_by_std_in_grpo
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-sum-norm"


def test_dr_mas_is_the_default_credit() -> None:
    config, default = resolved("algorithm.preset=dr_mas"), RunConfig()
    default.algorithm.preset = "dr_mas"
    assert config == default


@pytest.mark.parametrize("name", PRESETS)
def test_python_and_command_line_expand_alike(name: str) -> None:
    config = RunConfig()
    apply_preset(config, name)
    assert config == resolved(f"algorithm.preset={name}")


@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
def test_keys_given_win_in_whatever_order(order: int) -> None:
    given = [
        "algorithm.preset=dapo",
        f"{ACTOR}.clip_ratio_high=0.3",
        "++algorithm.filter_groups.enable=false",
    ]
    config = resolved(*given[::order])
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3
    assert not config.algorithm.filter_groups.enable
    assert config.actor_rollout_ref.actor.clip_ratio_low == 0.2


def test_a_given_clip_ratio_takes_the_place_of_both_sides() -> None:
    actor = resolved(f"{ACTOR}.clip_ratio=0.1", "algorithm.preset=dapo").actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.1)


def test_the_filters_metric_goes_with_the_filter() -> None:
    """Switched off beside the preset, the filter leaves no key behind that would do nothing; switched on
    again, it stays DAPO's.
    """
    rules = [
        resolved("algorithm.preset=dapo", f"algorithm.filter_groups.enable={on}").algorithm.filter_groups
        for on in ("True", "false")
    ]
    assert [(rule.enable, rule.metric) for rule in rules] == [(True, "mixed_reward"), (False, None)]


def test_apply_preset_does_not_change_keys_to_keep() -> None:
    config = RunConfig()
    config.actor_rollout_ref.actor.clip_ratio_high = 0.1
    apply_preset(config, "dapo", keep=[f"{ACTOR}.clip_ratio_high"])
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.1
    assert config.algorithm.filter_groups.metric == "mixed_reward"


def test_the_last_preset_given_is_the_one() -> None:
    config = resolved("algorithm.preset=dapo", "algorithm.preset='dr_grpo'")
    assert not config.algorithm.filter_groups.enable
    assert not config.algorithm.norm_adv_by_std_in_grpo
    assert resolved("algorithm.preset=dapo", "algorithm.preset=null") == RunConfig()


def test_options_of_hydra_stay_in_front() -> None:
    assert expand_presets(["--cfg", "job", "algorithm.preset=dr_mas"])[:2] == ["--cfg", "job"]
    assert expand_presets(["--config-dir=x", "trainer.device=cpu"]) == [
        "--config-dir=x",
        "trainer.device=cpu",
    ]


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(
        PresetError, match=r"algorithm\.preset='dappo': expected one of dr_mas, .*did you mean 'dapo'"
    ):
        expand_presets(["algorithm.preset=dappo"])
    with pytest.raises(PresetError, match="expected one of"):
        apply_preset(RunConfig(), "dappo")


def test_a_preset_that_is_named_but_not_applied_is_refused() -> None:
    config = RunConfig()
    config.algorithm.preset = "dapo"
    with pytest.raises(PresetError, match="apply_preset"):
        describe_preset(config)


def test_the_expansion_is_one_line_that_says_what_was_given_instead() -> None:
    line = describe_preset(resolved("algorithm.preset=dapo", f"{ACTOR}.clip_ratio_high=0.3"))
    assert line.startswith("preset dapo: algorithm.adv_estimator=grpo ")
    assert f"{ACTOR}.clip_ratio_low=0.2" in line
    assert line.endswith(f"(given instead: {ACTOR}.clip_ratio_high=0.3)")
    assert "\n" not in line
    assert describe_preset(RunConfig()) == ""


def test_what_the_example_gives_takes_nothing_from_a_preset() -> None:
    """Keys of examples/run_math.sh count as given, so a preset beside them would lose what they set
    otherwise.
    """
    words = shlex.split(re.sub(r"#.*", "", (ROOT / "examples" / "run_math.sh").read_text()), posix=True)
    given = [word.split("=", 1) for word in words if re.match(r"^[a-z_]+(\.[a-z_]+)+=", word)]
    assert ["algorithm.adv_estimator", "grpo"] in given
    for name, preset in PRESETS.items():
        taken = {key: value for key, value in given if preset.get(key, value) != value}
        assert not taken, f"run_math.sh would keep these against {name}"


def test_the_run_prints_the_expansion_and_keeps_it_in_its_config(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    """Through the real entry, up to the first check that needs a model."""
    import sys

    from agent_system.launch import train

    caplog.set_level(logging.INFO)
    argv, sys.argv = (
        sys.argv,
        ["main_ppo", "agent.agent_ids=[Solver Agent,Verifier Agent]", "algorithm.preset=dr_grpo"],
    )
    try:
        with pytest.raises(SystemExit):
            train.cli()
    finally:
        sys.argv = argv
    lines = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("preset dr_grpo: ")
    ]
    assert len(lines) == 1
    assert "algorithm.norm_adv_by_std_in_grpo=false" in lines[0]
    assert "actor_rollout_ref.model.path" in capsys.readouterr().err
