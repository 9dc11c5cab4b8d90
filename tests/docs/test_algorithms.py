"""docs/algorithms.md is what the docstrings say, and the keys that it names exist."""

import re
import subprocess
import sys

from tests.house.source import ROOT
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import describe
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gen_algorithm_docs.py", "--check"], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_algorithm_has_an_entry() -> None:
    ours = [n for r in (ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY) for n, fn in r.items() if fn.__module__.startswith("verl.")]
    assert [name for name in ours if not re.search(rf"^### .*`{name}`", PAGE, re.MULTILINE)] == []


def test_every_key_of_an_entry_exists() -> None:
    known = [name for name, *_ in describe(RunConfig)]
    spans = [span for line in re.findall(r"^- \*\*Keys\*\*: (.*)$", PAGE, re.MULTILINE) for span in re.findall(r"`([^`]*)`", line)]
    named = {span.removesuffix("*").removesuffix(".") for span in spans}
    keys = {span for span in named if "=" not in span and " " not in span}
    assert len(keys) > 20
    assert [key for key in keys if not any(f".{name}.".find(f".{key}.") >= 0 for name in known)] == []
