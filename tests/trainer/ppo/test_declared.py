"""What is said of estimators and losses before they are imported is what their registries hold."""

from __future__ import annotations

import subprocess
import sys
from inspect import Parameter, signature

import pytest

from verl.trainer.ppo import declared
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

ASKED = ("batch", "index", "reward_baselines", "sum_pi_squared", "traj_index", "values")


def built_in(registry: dict) -> list[str]:
    return sorted(name for name, function in registry.items() if function.__module__.startswith("verl."))


def test_the_tables_are_those_of_the_registries() -> None:
    assert sorted(declared.ESTIMATORS) == built_in(ADV_ESTIMATOR_REGISTRY)
    assert sorted(declared.POLICY_LOSSES) == built_in(POLICY_LOSS_REGISTRY)
    for name, listed in declared.ESTIMATORS.items():
        parameters = signature(ADV_ESTIMATOR_REGISTRY[name]).parameters
        words = [word + ("" if parameters[word].default is Parameter.empty else "=") for word in ASKED if word in parameters]
        assert sorted(listed.split()) == sorted(words), name


def test_answers_are_the_same_before_and_after_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[object]:
        of = [(n, p, declared.estimator_takes(n, p), declared.estimator_needs(n, p)) for n in declared.ESTIMATORS for p in ASKED]
        return [*of, *[(n, declared.is_built_in(n)) for n in (*declared.ESTIMATORS, *declared.POLICY_LOSSES, "nobody")]]

    after = answers()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "verl.trainer.ppo.core_algos.registry")
        assert answers() == after
        assert declared.estimator_names() == sorted(declared.ESTIMATORS)
        assert declared.policy_loss_names() == sorted(declared.POLICY_LOSSES)


def test_what_a_user_registers_is_asked_for_by_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(token_level_rewards: object, values: object, index: object = None) -> None: ...

    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "mine", mine)
    assert "mine" in declared.estimator_names() and not declared.is_built_in("mine")
    assert declared.estimator_needs("mine", "values") and not declared.estimator_needs("mine", "index")
    with pytest.raises(ValueError, match=r"unknown advantage estimator 'mien'; registered are .*'mine'"):
        declared.estimator_takes("mien", "index")


def test_the_checks_of_settings_import_no_torch() -> None:
    code = "import verl.trainer.config.cross_checks, sys; print({'torch', 'tensordict', 'transformers', 'ray', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
