"""Every declared key, misspelt, mistyped and beyond its range, is one line of error that names it, before
torch is imported.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional, get_args

import pytest

from tests.house.source import ROOT
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, AlgorithmConfig, RunConfig
from verl.trainer.config.spec import LARGEST_INT, ConfigError, Key, keys
from verl.trainer.plan.agents import PER_AGENT_KEYS, agent_settings
from verl.trainer.plan.check_keys import check_command_line
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.effects import FACTS, Scope, holds
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan
from verl.utils.names import value_at


def kind_of(key: Key) -> Any:
    """The type of a key that is not null."""
    return next((part for part in get_args(key.type) if key.type == Optional[part]), key.type)


def beyond(key: Key) -> Iterator[Any]:
    """A number below the range of a key and one above it; none where it has no numbers."""
    kind = kind_of(key)
    if kind in (int, float):
        least = -1e39 if kind is float else -LARGEST_INT - 2
        below = key.gt if key.gt is not None else least if key.ge is None else key.ge - 1
        yield kind(below - 1 if below == key.off else below)
        yield kind(
            key.lt
            if key.lt is not None
            else key.le + 1
            if key.le is not None
            else 1e39
            if kind is float
            else LARGEST_INT + 1
        )
        yield from [float("nan"), float("inf")] if kind is float else [2.5]


def mistyped(key: Key) -> Any:
    """A value of another type."""
    kind = kind_of(key)
    return (
        "abc"
        if kind in (int, float)
        else 2
        if kind is bool
        else [["a"]]
        if str in (kind, *get_args(kind))
        else 5
    )


def mistakes() -> Iterator[tuple[str, str]]:
    """(key, override) of everything that is tried."""
    for name, key in keys(RunConfig).items():
        yield name, f"{name}_={5}"
        yield name, f"{name}={json.dumps(mistyped(key))}"
        yield from ((name, f"{name}={value}") for value in beyond(key))
        if key.choices and not callable(key.choices):
            wrong = "[no_such]" if isinstance(key.default, list) or "list" in str(key.type) else "no_such"
            yield name, f"{name}={wrong}"


def check(config: RunConfig) -> None:
    """Check keys against each other."""
    resolve_defaults(config)
    resolve(config)


def try_all() -> dict[str, Any]:
    """Give each mistake to the command line. Returns how many there were, and what is wrong with their
    messages.
    """
    wrong, tried = [], 0
    for name, override in mistakes():
        said, status = io.StringIO(), None
        try:
            with contextlib.redirect_stderr(said):
                check_command_line([override], check)
        except SystemExit as ended:
            status = ended.code
        line, tried = said.getvalue(), tried + 1
        if status != 1 or line.count("\n") != 1 or not line.startswith("error: ") or name not in line:
            wrong.append([override, status, line])
    return {"wrong": wrong, "tried": tried, "torch": "torch" in sys.modules}


def test_each_is_one_line_that_names_the_key_before_torch_is_imported() -> None:
    code = "import json; from tests.trainer.test_declarations import try_all; print(json.dumps(try_all()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["tried"] > 3 * len(keys(RunConfig)) and not found["torch"]


@pytest.mark.parametrize("number", range(4))
def test_a_value_of_one_agent_is_blamed_on_the_key_of_that_agent(number: int) -> None:
    base = ActorRolloutRefConfig()
    base.model.path = "owner/model"
    for name, key in keys(ActorRolloutRefConfig).items():
        values = [*beyond(key), *([mistyped(key)] if number == 0 else [])][number : number + 1]
        *sections, leaf = name.split(".")
        for value in values if name != "model.path" else ():
            own: dict[str, Any] = {leaf: [None, value]}
            for section in reversed(sections):
                own = {section: own}
            with pytest.raises(ConfigError) as refused:
                build_placement(AgentConfig(agent_ids=["A", "B"], agent_specific_parameters=own), base)
            assert str(refused.value).startswith(
                f"agent.agent_specific_parameters.{name}={value} (agent 'B'): expected "
            )
    for name, key in keys(AlgorithmConfig).items():
        for value in list(beyond(key))[number : number + 1] if name.split(".")[0] in PER_AGENT_KEYS else ():
            tree: dict[str, Any] = {name.split(".")[-1]: value}
            for section in reversed(name.split(".")[:-1]):
                tree = {section: tree}
            with pytest.raises(ConfigError) as refused:
                agent_settings(AlgorithmConfig(per_agent={"a": tree}), "A")
            assert str(refused.value).startswith(f"algorithm.per_agent.a.{name}={value}: expected ")


def test_defaults_are_valid() -> None:
    for key in keys(RunConfig).values():
        assert key.validate(key.default) == key.default


def test_every_condition_can_be_evaluated_and_names_keys_that_exist() -> None:
    config, scope = RunConfig(), Scope(RunConfig(), RunPlan((), ()))
    for name, key in keys(RunConfig).items():
        for condition in key.effect:
            assert holds(condition, name, scope) in (True, False)
            if condition not in FACTS:
                for alternative in condition.rpartition(": ")[2].split(" or "):
                    value_at(config, alternative.split("=")[0].split("!")[0].split(">")[0])


def test_the_override_that_is_wrong_is_named_not_another_of_the_same_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lr = "actor_rollout_ref.actor.optim.lr"
    with pytest.raises(SystemExit):
        check_command_line([f"{lr}=3e-4", f"{lr}=abc"], check)
    assert capsys.readouterr().err == f"error: {lr}=abc: expected float, at least 0\n"


def test_a_key_that_only_the_preset_gives_is_called_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_command_line(
            [
                "algorithm.preset=at_grpo",
                "actor_rollout_ref.model.path=owner/model",
                "rollout.sampling=parallel",
            ],
            check,
        )
    line = capsys.readouterr().err
    assert line.startswith("error: algorithm.group_by=['traj_uid', ") and line.endswith(
        " (set by algorithm.preset=at_grpo)\n"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_files=null", "data.train_files=null: expected str or list[str]"),
        ("agent.plugins=['']", "agent.plugins=['']: expected no empty string"),
        ("agent.agent_ids=[[a]]", "agent.agent_ids=[[a]]: expected list[str]"),
        ("agent.orchestra.draft=5", "agent.orchestra.draft=5: expected dict[str, Any]"),
        (
            "data.apply_chat_template_kwargs.tools=5",
            "data.apply_chat_template_kwargs.tools=5: tools is set by the run",
        ),
        (
            "data.apply_chat_template_kwargs.self=1",
            "data.apply_chat_template_kwargs.self=1: self is set by the run",
        ),
        (
            "data.seed=18446744073709551616",
            "data.seed=18446744073709551616: expected at least 0 and at most 4294967295",
        ),
        (
            "trainer.worker_timeout_s=1e10",
            "trainer.worker_timeout_s=1e10: expected above 0 and at most 2000000",
        ),
        ("trainer.num_threads=100000", "trainer.num_threads=100000: expected at least 0 and at most 1024"),
        ("reward.alpha=1e300", "reward.alpha=1e300: expected at least 0 and at most 3.4e+38"),
        (
            "actor_rollout_ref.actor.clip_ratio_low=1e39",
            "actor_rollout_ref.actor.clip_ratio_low=1e39: expected at least 0 and at most 3.4e+38",
        ),
        (
            "actor_rollout_ref.actor.optim.eps=1e-50",
            "actor_rollout_ref.actor.optim.eps=1e-50: expected at least 1.2e-38 (float32)",
        ),
        ("data.train_max_samples=0", "data.train_max_samples=0: expected -1 or at least 1"),
        (
            "algorithm.per_agent.a.gdpo_reward_weights=[x]",
            "algorithm.per_agent.a.gdpo_reward_weights=['x']: expected list[float]",
        ),
        ("trainer.val_only=2", "trainer.val_only=2: expected bool"),
    ],
)
def test_what_no_type_of_omegaconf_rules_out_is_one_line(
    override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    team = ["actor_rollout_ref.model.path=owner/model", "agent.agent_ids=[a]"]
    with pytest.raises(SystemExit):
        check_command_line([*team, override], check)
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_the_bounds_of_the_declaration_are_those_of_the_check() -> None:
    lr = keys(RunConfig)["actor_rollout_ref.actor.optim.lr"]
    assert lr.validate(0) == 0.0 and isinstance(lr.validate(0), float)
    with pytest.raises(ConfigError, match="expected at least 2"):
        replace(lr, ge=2).validate(1.0)
