"""docs/algorithms.md is what the docstrings say, and the keys that it names exist."""

import re
import runpy
import sys
from typing import Any

import pytest

from scripts.gen_algorithm_docs import before_arguments, facts
from tests.house.source import ROOT
from verl.trainer.config import RunConfig, spec
from verl.trainer.plan.presets import PRESETS
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES, Registry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gen_algorithm_docs.py", "--check"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "gen_algorithm_docs.py"), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().err


def test_every_algorithm_has_an_entry() -> None:
    ours = [
        n
        for r in (ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY)
        for n, fn in r.items()
        if fn.__module__.startswith("verl.")
    ]
    assert [name for name in ours if not re.search(rf"^### .*`{name}`", PAGE, re.MULTILINE)] == []


# What has to stand in an entry, whatever wrote it: where the method comes from, a formula (code, with an
# operator in it), and its facts.
PARTS = {
    "source": r"arXiv \d{4}\.\d{5}|https?://|No paper: ",
    "formula": r"`[^`\n]*\S\s?(?:[-+*/<>]|[<>:]?=)\s?\S[^`\n]*`|^ {4}\S.*[-+*/<>=]",
    "keys": r"^- \*\*Keys\*\*: (?:none\.|.*`\S+`)",
    "use when": r"^- \*\*Use when\*\*: \S.{20,}\.$",
    "fails when": r"^- \*\*Fails when\*\*: \S.{20,}\.$",
}
ENTRIES = re.findall(r"^### (.*)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE)
SHARED = """Aggregation, KL estimators, KL in the reward, Fixed KL coefficient, Adaptive KL coefficient, Value loss, Entropy,
Dynamic sampling, Call weighting, Mixing, Shaping, Propagation, Invalid-action penalty, Over-long penalty,
`TIS`, `IcePop`, `MIS`, `Rejection`, `M2PO`"""


def test_every_entry_has_its_five_parts() -> None:
    assert len(ENTRIES) > 40
    lacking = [
        (title, part)
        for title, text in ENTRIES
        for part, how in PARTS.items()
        if not re.search(how, text, re.MULTILINE)
    ]
    assert lacking == []


def test_presets_and_what_nobody_picks_by_name_have_entries_of_their_own() -> None:
    wanted = [*(title.strip() for title in SHARED.split(",")), *(f"`{name}`" for name in PRESETS)]
    titles = [title for title, _ in ENTRIES]
    assert [title for title in wanted if titles.count(title) != 1] == []


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("arXiv 2402.03300", "a source"),
        ("`A = s - b`", "a formula"),
        ("Keys: ", "Keys"),
        ("Use when: ", "Use when"),
        ("Fails when: ", "Fails when"),
    ],
)
def test_a_docstring_without_a_part_stops_the_generator(left_out: str, message: str) -> None:
    whole = "`A = s - b` (arXiv 2402.03300).\n\nKeys: none.\nUse when: it helps.\nFails when: it does not."
    assert facts(whole, "here")[1] == {"Keys": "none.", "Use when": "it helps.", "Fails when": "it does not."}
    with pytest.raises(ValueError, match=rf"^here: .*\['{message}'\]"):
        facts(whole.replace(left_out, ""), "here")


@pytest.mark.parametrize("kind", [ESTIMATORS, POLICY_LOSSES], ids=["estimators", "losses"])
def test_a_key_that_only_some_algorithms_read_is_among_their_keys(kind: Registry[Any]) -> None:
    told = {
        name: facts(before_arguments(fn), name)[1]["Keys"]
        for name, fn in kind.functions.items()
        if fn.__module__.startswith("verl.")
    }
    left_out = [
        (name, key) for name, keys in told.items() for key in kind.traits(name).reads if key not in keys
    ]
    assert left_out == []


def test_every_key_of_an_entry_exists() -> None:
    known = [*spec.keys(RunConfig)]
    spans = [
        span
        for line in re.findall(r"^- \*\*Keys\*\*: (.*)$", PAGE, re.MULTILINE)
        for span in re.findall(r"`([^`]*)`", line)
    ]
    named = {span.removesuffix("*").removesuffix(".") for span in spans}
    keys = {span for span in named if "=" not in span and " " not in span}
    assert len(keys) > 20
    assert [key for key in keys if not any(f".{name}.".find(f".{key}.") >= 0 for name in known)] == []
