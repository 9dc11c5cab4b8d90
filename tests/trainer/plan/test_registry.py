"""What is known of estimators and losses before they are imported is what their registries hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import ROOT
from verl.trainer.plan import registry
from verl.trainer.plan.registry import (
    ESTIMATORS,
    POLICY_LOSSES,
    EstimatorTraits,
    LossTraits,
    Parameters,
    estimator_needs,
    estimator_takes,
)
from verl.trainer.ppo.core_algos import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    register_adv_est,
    register_policy_loss,
)

ASKED = """
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES
import sys
for registry in (ESTIMATORS, POLICY_LOSSES):
    for name in registry.names():
        traits = {key: value for key, value in vars(registry.traits(name)).items() if key != "units"}
        print(name, traits, *registry.parameters(name))
print("torch" in sys.modules)
"""


def answers(code: str, folder: Path = ROOT) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.splitlines()


def test_the_source_says_what_the_import_registers() -> None:
    *before, torch = answers(ASKED)
    assert torch == "False" and len(before) > 30
    assert before == answers("import verl.trainer.ppo.core_algos.public" + ASKED)[:-1]


def test_a_function_that_is_asked_for_imports_its_file_alone() -> None:
    asked = (
        "import sys; from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES; "
        "print(ESTIMATORS.function('gae').__name__, POLICY_LOSSES.function('gspo').__name__, "
        "sorted(ESTIMATORS.functions), sorted(POLICY_LOSSES.functions))"
    )
    assert answers(asked) == ["compute_gae_advantage_return compute_policy_loss_gspo ['gae'] ['gspo']"]


def test_a_name_of_the_package_is_taken_before_its_file_is_imported() -> None:
    code = (
        "from verl.trainer.plan.registry import register_adv_est\n"
        "def mine(token_level_rewards): ...\n"
        "try:\n    register_adv_est('gae')(mine)\nexcept ValueError as error:\n    print(error)"
    )
    assert answers(code) == [
        "advantage estimator 'gae' is already registered as "
        "verl.trainer.ppo.core_algos.estimators.gae.compute_gae_advantage_return; choose another name"
    ]


PROBE = """
from verl.trainer.plan.registry import register_adv_est

@register_adv_est("probe", reads=("lam",), grouped=False)
def compute_probe(token_level_rewards, response_mask, values):
    return token_level_rewards, token_level_rewards
"""
KNOWN = """
import sys
from verl.trainer.plan.ineffective_keys import condition_text, readers
from verl.trainer.config import algorithm
from verl.trainer.plan.registry import ADV_ESTIMATOR_REGISTRY, ESTIMATORS, estimator_needs
print("probe" in ESTIMATORS.names(), estimator_needs("probe", "values"), "probe" not in readers("algorithm.group_by"))
print(condition_text(algorithm.READ, "algorithm.lam"), "torch" in sys.modules)
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as of_the_package
print("probe" in ADV_ESTIMATOR_REGISTRY, of_the_package is ADV_ESTIMATOR_REGISTRY)
"""


def test_a_file_in_the_folder_is_registered_and_its_keys_are_checked(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "verl", tmp_path / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "verl/trainer/ppo/core_algos/estimators/probe.py").write_text(PROBE)
    assert answers(KNOWN, tmp_path) == [
        "True True True",
        "algorithm.adv_estimator=gae or probe False",
        "True True",
    ]


@pytest.mark.parametrize("kind", [ESTIMATORS, POLICY_LOSSES], ids=["estimators", "losses"])
def test_every_function_of_the_package_says_what_it_reads(kind: registry.Registry[Any]) -> None:
    ours = [name for name, function in kind.functions.items() if function.__module__.startswith("verl.")]
    assert [name for name in ours if kind.traits(name).reads is None] == []


def test_a_section_that_is_read_stands_for_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ESTIMATORS.readers("gae.level") == ["gae"] and ESTIMATORS.readers("gae_level") == []
    assert ESTIMATORS.reads("gigpo", "gamma") and not ESTIMATORS.reads("grpo", "gamma")
    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "mine", mine)
    assert ESTIMATORS.reads("mine", "gamma") and "mine" not in ESTIMATORS.readers("gamma"), (
        "one that does not say may read any key"
    )


def mine(token_level_rewards: object, values: object, index: object = None) -> None: ...


def test_what_a_user_puts_into_the_registry_is_known_by_its_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "mine", mine)
    assert "mine" in ESTIMATORS.names() and ESTIMATORS.traits("mine") == EstimatorTraits()
    assert estimator_needs("mine", "values") and not estimator_needs("mine", "index")
    with pytest.raises(ValueError, match=r"unknown advantage estimator 'mien'; registered are .*'mine'"):
        estimator_takes("mien", "index")


def test_traits_are_those_of_the_function_and_the_defaults_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ESTIMATORS, "functions", ADV_ESTIMATOR_REGISTRY.copy())
    monkeypatch.setattr(POLICY_LOSSES, "functions", POLICY_LOSS_REGISTRY.copy())

    def own(token_level_rewards: object) -> None: ...

    assert register_adv_est("of_this_test", "alias_of_this_test", grouped=False)(own) is own
    register_policy_loss("of_this_test")(own)
    assert (
        ESTIMATORS.traits("of_this_test")
        == ESTIMATORS.traits("alias_of_this_test")
        == EstimatorTraits(grouped=False)
    )
    assert POLICY_LOSSES.traits("of_this_test") == LossTraits()
    ESTIMATORS.functions["of_this_test"] = lambda **kwargs: None
    assert ESTIMATORS.traits("of_this_test") == EstimatorTraits(), "another function was put in its place"
    with pytest.raises(TypeError, match="groupd"):
        register_adv_est("other", groupd=False)


def test_parameters_are_those_that_can_be_given_by_name() -> None:
    def function(a: int, /, b: int, c: int = 1, *args: int, d: int, e: int = 2, **kwargs: int) -> None: ...

    assert Parameters.of(function) == Parameters({"b": True, "c": False, "d": True, "e": False}, True)
    source = '@register_adv_est("x", grouped=False)\ndef f(a, /, b, c=1, *args, d, e=2, **kwargs): ...'
    assert list(registry._decorated_in(source, "a.file")) == [
        registry.Declaration("register_adv_est", ["x"], {"grouped": False}, Parameters.of(function), "a.file")
    ]


def test_the_checks_of_settings_import_no_torch() -> None:
    code = "import verl.trainer.plan.checks, sys; print({'torch', 'tensordict', 'transformers', 'ray', 'pandas'} & {*sys.modules})"
    assert answers(code) == ["set()"]
