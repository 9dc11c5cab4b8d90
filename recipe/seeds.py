"""Measurement of a script of `examples/` before and after training, shared by `measure.py` of several
recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from recipe.runs import (
    ROOT,
    Curve,
    Lines,
    Row,
    accuracy_key,
    make_parser,
    measure_all,
    overrides_of,
    read_metrics,
    run_example,
    success_curve,
    training_seconds,
)


def run_seed(
    workflow: str, seed: int, settings: Mapping[str, Any], more: Sequence[str], metrics: Mapping[str, str]
) -> tuple[Row, Curve]:
    """Run `examples/run_<workflow>.sh` with one seed; return the row of `results.json` and the curve of
    `curves.json`.

    Args:
        workflow: names the script.
        seed: seed of the run.
        settings: keys for the script.
        more: further `key=value`.
        metrics: metric of the validations by name in the row.

    Raises:
        RuntimeError: the script failed; the message names the file with its output.
    """
    run_dir = ROOT / "outputs" / "verl-mas" / f"{workflow}_measured_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    (run_dir / "run.log").unlink(missing_ok=True)
    run_example(
        workflow,
        seed,
        [*overrides_of(settings), f"trainer.default_local_dir={run_dir}", *more],
        run_dir / "run.log",
    )
    lines = read_metrics(run_dir / "metrics.jsonl")
    return summarise(seed, lines, metrics), success_curve(lines)


def summarise(seed: int, lines: Lines, metrics: Mapping[str, str]) -> Row:
    """Return one row: success before and after, seconds and generated tokens of training, metrics of the
    first and last validation.
    """
    validations = [line for line in lines if any(name.startswith("val-core/") for name in line)]
    first, last = validations[0], validations[-1]
    accuracy = accuracy_key(first)
    row: Row = {
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "train_seconds": training_seconds(lines),
        "steps": last["step"],
    }
    if "training/generated_tokens" in last:
        row["generated_tokens"] = int(last["training/generated_tokens"])
    for name, key in metrics.items():
        row |= {f"{name}_before": first.get(key), f"{name}_after": last.get(key)}
    return row


def main(workflow: str, here: Path, doc: str | None, metrics: Mapping[str, str]) -> None:
    """Measure the seeds of the command line with the settings of `here/config.yaml`."""
    args = make_parser(doc, here).parse_args()
    settings = yaml.safe_load((here / "config.yaml").read_text())
    calls = [partial(run_seed, workflow, seed, settings, args.overrides, metrics) for seed in args.seeds]
    measure_all(calls, args.jobs, args.out, ("seed",))
