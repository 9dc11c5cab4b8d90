"""A team learns to call a tool in the form of a published model: Llama-3.1's JSON, Mistral's list and
Qwen3-Coder's XML, each with its published chat template and vocabulary and a tiny model.

    python recipe/tool_forms/measure.py --seeds 0 1 2

trains the Clerk and the Cashier of `team.py` with each form and writes `results.json` (rows `{"form", "seed",
"before", "after", "calls", "valid_counted_invalid", ...}`), `curves.json` and `curves.svg` into this folder.
Rows of an earlier call are kept unless they are measured again. DEMOS is the number of demonstrations of the
warm start.

`valid_counted_invalid` counts the training replies that are, token for token, what the template shows for a
call of `price` and were not taken for that call. It does not use the parser: it renders all possible calls.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, Curve, Row, measure_grid, success_curve, success_row, train_embedded
from recipe.tool_forms import prepare
from recipe.tool_forms.team import CLERK, ITEMS, SHOPS, price

HERE = Path(__file__).parent
PREPARE = ("recipe.tool_forms.prepare", "--world", "shops")
LABELS = {
    "llama3_1": ("tab:blue", "Llama-3.1"),
    "mistral": ("tab:orange", "Mistral-7B v0.3"),
    "qwen3_coder": ("tab:purple", "Qwen3-Coder"),
}


def measure(form: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train with one form; return its row and its curve, [step, success] of every validation."""
    run = f"tool_forms_{form}_seed{seed}"
    settings = yaml.safe_load((HERE / "config.yaml").read_text())
    lines = train_embedded(
        run, seed, settings, os.environ.get("DEMOS") or None, more, (*PREPARE, "--course", form)
    )
    row = {"form": form, "seed": seed} | success_row(lines, {})
    return row | _calls(form, ROOT / "outputs" / "verl-mas" / run), success_curve(lines)


def _calls(form: str, run_dir: Path) -> Row:
    """Return how many of the Clerk's first replies are calls as the template shows them, and how many of
    these were not answered with the price and shown to the model again as they were.
    """
    rendered = _rendered(form)
    shown = wrong = malformed = 0
    for first, second in _first_rounds(run_dir):
        malformed += first["tools"]["malformed"] if first["tools"] else 0
        expected = rendered.get((first["reply"].strip(), first["response_tokens"]))
        if expected and first["stop_reason"] == "stop":
            shown += 1
            wrong += not (second and second["prompt"].endswith(expected))
    return {"calls": shown, "valid_counted_invalid": wrong, "malformed": malformed}


def _rendered(form: str) -> dict[tuple[str, int], str]:
    """Return what follows the question in the next prompt, by the text and the number of tokens of every
    call.
    """
    tokenizer = prepare.tokenizer(prepare.ShopsCourse(form=form))
    rendered: dict[tuple[str, int], str] = {}
    for item, shop in product(ITEMS, SHOPS):
        messages = prepare.called(item, shop, str(price(item, shop)))
        before, after, answered = (
            tokenizer.apply_chat_template(
                messages[:count],
                tools=prepare.tools(messages),
                tokenize=False,
                add_generation_prompt=count != 2,
            )
            for count in (1, 2, 3)
        )
        ids = tokenizer.encode(after[len(before) :].rstrip("\n"), add_special_tokens=False)
        # Trajectories keep the special tokens that belong to a call, and leave out the end of the turn.
        for shown in (ids[:-1], [token for token in ids if token not in tokenizer.all_special_ids]):
            rendered[tokenizer.decode(shown).strip(), len(ids)] = answered[len(before) :]
    return rendered


def _first_rounds(run_dir: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield the Clerk's first reply of every episode, and its second one."""
    for path in sorted((run_dir / "trajectories").glob("train_*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            calls = [call for call in json.loads(line)["calls"] if call["agent_id"] == CLERK]
            yield calls[0], calls[1] if len(calls) > 1 else None


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "form", LABELS, measure)
