"""The table of docs/models.md: how each family of the tests is trained and served.
`python -m tests.models.table` writes it.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections import Counter
from typing import Any

import torch

from tests.house.source import ROOT
from tests.models.families import FAMILIES
from verl.models.adapter_checks import adapter_report
from verl.models.export_check import export_difference
from verl.models.loader import ModelPathError
from verl.models.lora import LoraSpec
from verl.models.reward_model import scoring_of
from verl.protocol.generate import RolloutError
from verl.workers.engine.layout_check import LayoutError, choose_layout, training_randomness
from verl.workers.rollout.serving import serving_of

PAGE = ROOT / "docs" / "models.md"
COLUMNS = (
    "family",
    "trainer",
    "attention",
    "random in training",
    "`hf` engine",
    "export",
    "adapters",
    "critic",
    "reward model",
)
MAX_MODEL_LEN = 512


def cells(name: str) -> tuple[str, ...]:
    """Return the row of one family, as the checks of a run find it."""
    config = FAMILIES[name].config()
    return (
        name,
        *_trainer(config),
        _randomness(config),
        _engine(config),
        _export(config),
        _adapters(config),
        *_heads(config),
    )


def _trainer(config: Any) -> tuple[str, str]:
    try:
        layout = choose_layout(config).layout
    except LayoutError:
        return "refused", ""
    forms = {"packed": "packed", "padded": "padded", "equal": "rows of one length"}
    return forms[layout.form] + (", by limit" if layout.limits else ""), layout.attention


def _randomness(config: Any) -> str:
    return "yes, off" if training_randomness(config) else ""


def _engine(config: Any) -> str:
    try:
        serving = serving_of(config, max_model_len=MAX_MODEL_LEN)
    except RolloutError as error:
        limit = re.search(r"up to (\d+) tokens", str(error))
        return f"up to {limit[1]} tokens" if limit else "refused"
    return {"slots": "batched", "rows": "one by one"}[serving.mode]


def _export(config: Any) -> str:
    try:
        return "exact" if export_difference(config) < 1e-5 else "refused"
    except ModelPathError:
        return "refused"


def _adapters(config: Any) -> str:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    report = adapter_report(base, {"all-linear": LoraSpec(8, 8)})
    if report.problems:
        return "refused"
    return f"{round(100 * report.coverage['all-linear'].share)} %"


def _heads(config: Any) -> tuple[str, str]:
    from transformers import AutoModelForTokenClassification

    critic = "yes" if type(config) in AutoModelForTokenClassification._model_mapping else ""
    try:
        scoring = scoring_of(config)
    except ModelPathError:
        return critic, ""
    return critic, "padded" if scoring.padded else "one by one"


def table() -> str:
    """Return the whole table with its counts."""
    rows = []
    for name in FAMILIES:
        rows.append(cells(name))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(row) for row in rows]
    trainer = Counter(row[1].split(",")[0] for row in rows)
    engine = Counter(re.sub(r"up to \d+ tokens", "up to a limit", row[4]) for row in rows)
    exported = sum(row[5] == "exact" for row in rows)
    adapted = sum(row[6] != "refused" for row in rows)
    critics = sum(row[7] == "yes" for row in rows)
    reward_models = sum(bool(row[8]) for row in rows)
    counts = (
        f"Of {len(rows)} variants: trainer {_count(trainer)}; `hf` engine {_count(engine)}; export exact for "
        f"{exported}; adapters for {adapted}; a critic can be made from {critics}, a reward model is exact "
        f"for {reward_models}."
    )
    return counts + "\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"


def _count(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counter.most_common())


def written_rows() -> dict[str, tuple[str, ...]]:
    """Return the rows of the page, by family."""
    rows = {}
    for line in PAGE.read_text().splitlines():
        row = tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
        if len(row) == len(COLUMNS) and row[0] in FAMILIES:
            rows[row[0]] = row
    return rows


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(begin) + len(begin)] + "\n" + table() + "\n" + text[text.index(end) :])
