"""Tool calls that published templates show come back as they were put in, or the agent does not start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.templates.published import templates
from tests.templates.trial import SITUATIONS, Outcome, outcome

PAGE = ROOT / "docs" / "templates.md"
HEAD = (
    "| template | arguments | call | two calls | thinking + call | hard texts |\n|---|---|---|---|---|---|\n"
)
# Those of the models that are trained most; the others with --all-levels.
MOST_USED = (
    "trl/cohere2", "trl/deepseek_r1_distill", "trl/deepseekv3", "trl/gemma3", "trl/gemma4", "trl/glm4moe",
    "trl/gptoss", "trl/lfm2_v2",
    "trl/llama3", "trl/llama3_1", "trl/llama3_2", "trl/nemotron_3_nano", "trl/phi3_5", "trl/qwen2_5",
    "trl/qwen3", "trl/qwen3_5_think",
    "trl/qwen3_6", "trl/qwen3_instruct_2507", "xinference/GLM-4.6", "xinference/MiniMax-M2",
    "xinference/QwQ-32B",
    "xinference/Qwen3-Coder", "xinference/deepseek-r1-0528", "xinference/mistral-instruct-v0.3",
    "xinference/seed-oss",
    "xinference/DeepSeek-V3.2", "xinference/deepseek-r1-0528-qwen3", "xinference/Kimi-K2.5",
    "xinference/glm-5.1",
    "xinference/qwen2.5-instruct-1m",
    "trl/gemma", "trl/phi3", "trl/qwen3_vl", "trl/qwen3_8", "trl/nemotron_3_super", "trl/qwen2_5_vl",
    "trl/lfm2",
    "xinference/Qwen3-Instruct", "xinference/MiniMax-M2.5", "xinference/qwen1.5-chat",
    "xinference/deepseek-v2.5",
)  # fmt: skip


def rows(outcomes: list[Outcome]) -> str:
    """The table of the page: one line for each template that shows calls or tools."""
    shown = [o for o in outcomes if set(o.read.values()) != {"not shown"}]
    lines = [
        f"| {o.name} | {o.syntax or '-'} | {' | '.join(o.read[label] for label in SITUATIONS)} |\n"
        for o in shown
    ]
    counts = {label: Counter(o.read[label] for o in outcomes) for label in SITUATIONS}
    total = " | ".join(
        f"{counts[label]['exact']} exact, {counts[label]['refused']} refused" for label in SITUATIONS
    )
    return HEAD + "".join(lines) + f"| of {len(outcomes)} | | {total} |\n"


def check(outcomes: list[Outcome]) -> None:
    wrong = [f"{o.name}: {label}" for o in outcomes for label, what in o.read.items() if what == "wrong"]
    assert not wrong, f"another call than the template shows: {wrong}"


def test_calls_of_the_most_used_templates_come_back_or_are_refused() -> None:
    known = templates(("trl", "xinference"))
    outcomes = [outcome(name, known[name]) for name in MOST_USED]
    check(outcomes)
    assert len(outcomes) == len(MOST_USED)
    assert sum(o.read["call"] == "exact" for o in outcomes) >= 22
    assert {o.name for o in outcomes if o.read["call"] == "refused"} == set()


def test_calls_of_all_templates_come_back_or_are_refused_and_the_page_says_which(
    request: pytest.FixtureRequest,
) -> None:
    if not request.config.getoption("--all-levels"):
        pytest.skip("tries some two hundred templates: needs --all-levels")
    outcomes = [outcome(name, text) for name, text in templates().items()]
    check(outcomes)
    table = rows(outcomes)
    text = PAGE.read_text(encoding="utf-8")
    begin = text.index(HEAD.splitlines()[0])
    if text[begin:] != table:
        Path(f"{PAGE}.new").write_text(text[:begin] + table, encoding="utf-8")
    assert text[begin:] == table, f"the page is another; see {PAGE}.new"
