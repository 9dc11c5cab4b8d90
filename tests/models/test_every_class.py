"""Every causal language model of the installed transformers: trained, served and exported exactly, or refused
by one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.models.every_family import config_classes, variants
from tests.models.families import FAMILIES
from tests.models.table import cells, written_rows
from verl.models.export_check import export_difference
from verl.models.loader import ModelPathError
from verl.models.miniature import MiniatureError, miniature
from verl.protocol.generate import RolloutError
from verl.workers.engine.layout_check import FP32_BOUND, LayoutError, choose_layout
from verl.workers.rollout.serving import serving_of

CI_STEP = 22  # every so many classes in CI; all of them with --all-levels
EXACT, REFUSED = "exact", "refused by one line"


def usable(config_class: type) -> Any | None:
    """Return a configuration of a class of which a miniature can be made; None without one."""
    try:
        for config in variants(config_class):
            try:
                miniature(config)
                return config
            except MiniatureError:
                continue
    except Exception:  # the defaults of some classes are no configuration
        return None
    return None


def outcome(check: Callable[[], float]) -> str:
    """Return whether a check finds a way to exact numbers, refuses in one line, or else its error."""
    try:
        difference = check()
    except (LayoutError, ModelPathError, RolloutError) as error:
        return REFUSED if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:  # what the test is about: code of any model may raise anything
        return f"{type(error).__name__}: {error}"
    return EXACT if difference < FP32_BOUND else f"wrong by {difference}"


def served(config: Any) -> float:
    """Raise RolloutError if the engine cannot serve a model; the check itself compares the numbers."""
    serving_of(config, max_model_len=64)
    return 0.0


@pytest.mark.timeout(1800)  # all classes take ten minutes
def test_every_class_is_exact_or_refused_by_one_line(request: pytest.FixtureRequest) -> None:
    classes = config_classes()[:: 1 if request.config.getoption("--all-levels") else CI_STEP]
    counts: dict[str, Counter[str]] = {"trainer": Counter(), "hf engine": Counter(), "export": Counter()}
    wrong = []
    for config_class in classes:
        config = usable(config_class)
        if config is None or type(config) not in AutoModelForCausalLM._model_mapping:
            counts["trainer"]["no miniature"] += 1
            continue
        checks = {
            "trainer": lambda config=config: choose_layout(config).difference,
            "hf engine": lambda config=config: served(config),
            "export": lambda config=config: export_difference(config),
        }
        for name, check in checks.items():
            result = outcome(check)
            counts[name][result] += 1
            if result not in (EXACT, REFUSED):
                wrong.append((config_class.__name__, name, result[:300]))
    print({name: dict(count) for name, count in counts.items()})
    assert not wrong
    assert counts["trainer"][EXACT] >= 0.8 * len(classes) - 1


@pytest.mark.parametrize("name", sorted(FAMILIES)[::14])
def test_the_page_on_models_says_what_the_checks_find(name: str) -> None:
    assert cells(name) == written_rows()[name]


def test_every_family_of_the_tests_is_on_the_page_on_models() -> None:
    assert list(written_rows()) == list(FAMILIES)
