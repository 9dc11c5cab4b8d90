"""Runs of the project as subprocesses, for the recipes' scripts."""

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
T = TypeVar("T")


def run_module(module: str, *arguments: str) -> list[str]:
    """Run a module of the project; returns the lines of its standard output."""
    command = [sys.executable, "-m", module, *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def run_example(workflow: str, seed: int, arguments: Sequence[str], log: Path) -> float:
    """`bash examples/run_<workflow>.sh` with these arguments; its output is appended to `log`.

    Returns the most GiB that its processes held together. Raises RuntimeError naming the log when it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    hidden = ("MODEL_PATH", "DATA", "EXPERIMENT")
    env = {k: v for k, v in os.environ.items() if k not in hidden} | {"SEED": str(seed)}
    command = ["bash", f"examples/run_{workflow}.sh", *arguments]
    with log.open("a") as out, subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT) as process:
        watch = MemoryWatch(process.pid)
        watch.start()
        status = process.wait()
        watch.stop()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} (SEED={seed}) ended with status {status}; its output is in {log}")
    return watch.peak_gib


def finished(calls: Iterable[Callable[[], T]], jobs: int) -> Iterator[T]:
    """The results of calls as they come, `jobs` calls at a time.

    Each has its share of the cores for what it starts, where OMP_NUM_THREADS does not say otherwise: of several runs that all take every
    core, each waits for the others. A call that fails is told of on stderr and the others go on; SystemExit is raised after the last.
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
        sys.exit(f"{failed} of {len(futures)} runs failed; what the others found is written")


def measure_grid(
    doc: str | None,
    here: Path,
    name: str,
    labels: Mapping[str, tuple[str, str]],
    measure: Callable[[str, int, list[str]], tuple[dict[str, Any], list[list[float]]]],
) -> None:
    """Measure every variant and seed of the command line; results are written after each run and keep the rows of others.

    Args:
        doc: of the script.
        here: folder of `results.json`, `curves.json` and `curves.svg` unless `--out` names one.
        name: of the column, and in the plural of the option, that says which variant a run is.
        labels: variant -> its colour and label in the plot.
        measure: variant, seed and more `key=value` -> the row, and the curve [step, success].
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{name}s", dest="variants", nargs="+", choices=tuple(labels), default=list(labels))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=folder, default=here)
    parser.add_argument("overrides", nargs="*", help="more key=value for every run")
    args = parser.parse_args()
    results, drawn = args.out / "results.json", args.out / "curves.json"
    rows = {(r[name], r["seed"]): r for r in (json.loads(results.read_text()) if results.exists() else [])}
    curves = json.loads(drawn.read_text()) if drawn.exists() else {}
    try:
        calls = [partial(measure, variant, seed, args.overrides) for seed, variant in product(args.seeds, args.variants)]
        for row, curve in finished(calls, args.jobs):
            rows[row[name], row["seed"]], curves[f"{row[name]}/{row['seed']}"] = row, curve
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            results.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")
            drawn.write_text(json.dumps(curves, sort_keys=True) + "\n")
    finally:
        plot_curves(curves, labels, here.name, args.out / "curves.svg")


def plot_curves(curves: Mapping[str, list[list[float]]], labels: Mapping[str, tuple[str, str]], salt: str, path: Path) -> None:
    """Draw success over steps: a colour a variant, a line a seed; `salt` makes the ids in the file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = salt
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    named: set[str] = set()
    for run, points in sorted(curves.items()):
        variant = run.split("/")[0]
        colour, label = labels[variant]
        panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.0, label=None if variant in named else label)
        named.add(variant)
    panel.set_xlabel("step")
    panel.set_ylabel("team accuracy on held-out problems")
    panel.set_ylim(0, 1)
    panel.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def folder(path: str) -> Path:
    """A folder for results, as `type` of an argument: it is made before anything expensive starts."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(path)


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """`key=value` as Hydra reads it."""
    return [f"{key}={_value(value)}" for key, value in settings.items()]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy_key(line: Mapping[str, Any]) -> str:
    """Name of the team's success in a line with a validation."""
    return next(k for k in line if k.startswith("val-core/") and "/acc/mean@" in k)


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
