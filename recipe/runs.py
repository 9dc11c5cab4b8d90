"""Runs of the project as subprocesses, and their results, for the scripts of the recipes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from recipe.memory import MemoryWatch

ROOT = Path(__file__).resolve().parents[1]
Lines = Sequence[Mapping[str, Any]]  # of a `metrics.jsonl`
Row = dict[str, Any]
Curve = list[list[float]]
T = TypeVar("T")


def run_module(module: str, *arguments: str) -> list[str]:
    """Run a module of the project and return the lines of its standard output."""
    command = [sys.executable, "-m", module, *arguments]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    }
    return subprocess.run(
        command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def run_example(
    workflow: str, seed: int, arguments: Sequence[str], log: Path, course: str | None = None
) -> float:
    """Run `bash examples/run_<workflow>.sh` with these arguments and append its output to `log`; `course` is
    that of the warm start.

    Returns:
        The peak memory of all its processes together, in GiB.

    Raises:
        RuntimeError: the script failed; the message names the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    hidden = ("MODEL_PATH", "DATA", "EXPERIMENT", "COURSE")
    env = (
        {k: v for k, v in os.environ.items() if k not in hidden}
        | {"SEED": str(seed)}
        | ({"COURSE": course} if course else {})
    )
    command = ["bash", f"examples/run_{workflow}.sh", *arguments]
    with (
        log.open("a") as out,
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        watch = MemoryWatch(process.pid)
        watch.start()
        status = process.wait()
        watch.stop()
    if status != 0:
        raise RuntimeError(
            f"{' '.join(command)} (SEED={seed}) ended with status {status}; its output is in {log}"
        )
    return watch.peak_gib


def train_embedded(
    run: str,
    seed: int,
    settings: Mapping[str, Any],
    demos: int | str | None,
    more: Sequence[str],
    prepare: Sequence[str] = ("examples.embedded.prepare",),
) -> list[Row]:
    """Train on embedded tasks from their warm start and return the lines of `metrics.jsonl`.

    Args:
        run: name of the folder of the run.
        seed: seed of the data, the warm start and the training.
        settings: keys of the run.
        demos: demonstrations of the warm start; None for all.
        more: further `key=value`.
        prepare: module that creates tasks and warm start, and its arguments; by default those of the word
            problems.
    """
    arguments = [] if demos is None else ["--demos", str(demos)]
    embedded = run_module(*prepare, "--out", "outputs/embedded", "--seed", str(seed), *arguments)[-1]
    run_dir = ROOT / "outputs" / "verl-mas" / run
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    run_module(
        "verl.trainer.main_ppo",
        f"actor_rollout_ref.model.path={embedded}/model",
        f"data.train_files={embedded}/train.parquet",
        f"data.val_files={embedded}/test.parquet",
        f"data.seed={seed}",
        f"trainer.default_local_dir={run_dir}",
        *overrides_of(settings),
        *more,
    )
    return read_metrics(run_dir / "metrics.jsonl")


def finished(calls: Iterable[Callable[[], T]], jobs: int) -> Iterator[T]:
    """Yield the results of calls as they finish, with `jobs` calls at a time.

    The processes of a call get their share of the cores by OMP_NUM_THREADS, unless it is set: runs that all
    use every core slow each other down. The error of a failed call is written to stderr, and SystemExit is
    raised after the last call.
    """
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // jobs, 1)))
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(call) for call in calls]
        for done in as_completed(futures):
            if (error := done.exception()) is None:
                yield done.result()
            else:
                failed += 1
                sys.stderr.write(f"{error}\n")
    if failed:
        sys.exit(f"{failed} of {len(futures)} runs failed; the results of the others are written")


def make_parser(doc: str | None, here: Path) -> argparse.ArgumentParser:
    """Return the command line of a recipe, with the options that all have; `here` is the default folder of
    the results.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=folder, default=here, help="folder of the results")
    parser.add_argument("overrides", nargs="*", help="further key=value for every run")
    return parser


def measure_all(
    calls: Iterable[Callable[[], tuple[Row, Any]]],
    jobs: int,
    out: Path,
    columns: Sequence[str],
    *,
    order: Callable[[tuple[Any, ...]], Any] | None = None,
    plot: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Run measurements; write `results.json` and `curves.json` after each, and `curves.svg` at the end. Rows
    of earlier calls are kept.

    Args:
        calls: each returns a row of `results.json` and its entry in `curves.json`.
        jobs: calls at a time.
        out: folder of the files.
        columns: columns whose values identify a row; joined by `/` they are the key in `curves.json`.
        order: sort key of these values; None for their natural order.
        plot: draws all curves into a file.
    """
    results, drawn = out / "results.json", out / "curves.json"
    rows = {
        tuple(row[name] for name in columns): row
        for row in (json.loads(results.read_text()) if results.exists() else [])
    }
    curves = json.loads(drawn.read_text()) if drawn.exists() else {}
    try:
        for row, curve in finished(calls, jobs):
            key = tuple(row[name] for name in columns)
            rows[key], curves["/".join(map(str, key))] = row, curve
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            results.write_text(json.dumps([rows[key] for key in sorted(rows, key=order)], indent=1) + "\n")
            drawn.write_text(json.dumps(curves, sort_keys=True) + "\n")
    finally:
        if curves and plot:
            plot(curves, out / "curves.svg")


def measure_grid(
    doc: str | None,
    here: Path,
    name: str,
    labels: Mapping[str, tuple[str, str]],
    measure: Callable[[str, int, list[str]], tuple[Row, Curve]],
) -> None:
    """Measure the variants and seeds of the command line.

    Args:
        doc: docstring of the script.
        here: default folder of the results.
        name: column that holds the variant; its plural is the option that selects variants.
        labels: variant -> its colour and label in the plot.
        measure: maps (variant, seed, further `key=value`) to the row and the curve [step, success].
    """
    parser = make_parser(doc, here)
    parser.add_argument(f"--{name}s", dest="variants", nargs="+", choices=tuple(labels), default=list(labels))
    args = parser.parse_args()
    calls = [
        partial(measure, variant, seed, args.overrides)
        for seed, variant in product(args.seeds, args.variants)
    ]
    measure_all(
        calls,
        args.jobs,
        args.out,
        (name, "seed"),
        plot=lambda curves, path: plot_curves(curves, labels, here.name, path),
    )


def plot_curves(
    curves: Mapping[str, Curve], labels: Mapping[str, tuple[str, str]], salt: str, path: Path
) -> None:
    """Draw success over steps with one colour per variant and one line per seed; `salt` determines the ids in
    the file.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = salt
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    named: set[str] = set()
    for run, points in sorted(curves.items()):
        variant = run.split("/")[0]
        colour, label = labels[variant]
        panel.plot(
            *zip(*points, strict=True), color=colour, linewidth=1.0, label=None if variant in named else label
        )
        named.add(variant)
    panel.set_xlabel("step")
    panel.set_ylabel("team accuracy at validation")
    panel.set_ylim(0, 1)
    panel.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def folder(path: str) -> Path:
    """Create a folder of results and return it, as `type` of an argument, so that an error occurs before any
    run.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(path)


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as `key=value` for Hydra."""
    return [f"{key}={_value(value)}" for key, value in settings.items()]


def read_metrics(path: Path) -> list[Row]:
    """Return the lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy_key(line: Mapping[str, Any]) -> str:
    """Return the name of the team's success in a line with a validation."""
    return next(k for k in line if k.startswith("val-core/") and "/acc/mean@" in k)


def success_curve(lines: Lines, x: str = "step") -> Curve:
    """Return [value of `x` (0 where it is missing), success] of every validation."""
    accuracy = accuracy_key(lines[0])
    return [[line.get(x, 0.0), line[accuracy]] for line in lines if accuracy in line]


def success_row(lines: Lines, shares: Mapping[str, str]) -> Row:
    """Return success and shares at the first and the last validation, seconds of training, and steps, as
    columns of `results.json`.

    Args:
        lines: lines of the run; the first one has a validation.
        shares: column without `_before` and `_after` -> metric of the environment.
    """
    accuracy = accuracy_key(lines[0])
    first, last = lines[0], [line for line in lines if accuracy in line][-1]
    row: Row = {"before": first[accuracy], "after": last[accuracy]}
    for name, metric in shares.items():
        row |= {f"{name}_before": first[f"val/env/{metric}"], f"{name}_after": last[f"val/env/{metric}"]}
    return row | {"seconds": training_seconds(lines), "steps": last["step"]}


def training_seconds(lines: Lines) -> float:
    """Return the seconds of all training steps."""
    return round(sum(line.get("timing_s/step", 0.0) for line in lines), 1)


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
