"""The measured figures of docs/async.md are those of the recorded runs."""

import importlib
import json
import statistics
from collections.abc import Iterator, Sequence

from tests.docs.pages import pages
from tests.house.source import ROOT

MODES = {
    "sync": "`sync`",
    "one_step_off": "`one_step_off`",
    "fully_async": "`fully_async`, `staleness_threshold=1`",
    "stale": "`fully_async`, `staleness_threshold=4`",
    "stale_uncorrected": "the same without a correction",
}
WORKLOADS = {"tools": "tools that take time", "tail": "long-tailed replies", "compute": "neither"}


def spread(values: Sequence[float], digits: int, middle: float | None = None) -> str:
    """The mean, or `middle`, with the lowest and the highest value."""
    shown = statistics.mean(values) if middle is None else middle
    return f"{shown:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def teams() -> Iterator[str]:
    """Lines of the table of teams, from the rows of the recipe."""
    recipe = importlib.import_module("recipe.async.measure")  # `async` is a keyword
    rows = json.loads((ROOT / "recipe/async/results.json").read_text())
    for team in recipe.SCRIPTS:
        sync = {
            row["seed"]: row["seconds"] for row in rows if (row["workload"], row["variant"]) == (team, "sync")
        }
        for variant, mode in MODES.items():
            own = [row for row in rows if (row["workload"], row["variant"]) == (team, variant)]
            ratios = [sync[row["seed"]] / row["seconds"] for row in own]
            cells = [team, mode, spread([100 * row["after"] for row in own], 1)]
            cells += ["—" if variant == "sync" else spread(ratios, 2, statistics.median(ratios))]
            cells += [
                str(max(row["staleness_max"] for row in own)),
                f"{100 * statistics.mean(row['idle'] for row in own):.0f} %",
            ]
            yield f"| {' | '.join(cells)} |"


def benchmarks() -> Iterator[str]:
    """Lines and phrases with the figures of the benchmarks."""
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    training, simulation = results["async_training"], results["async_simulation"]
    for name, label in WORKLOADS.items():
        key, seconds = f"speedup_{name}", training["step_s"]
        times = f"{seconds['sync'][name]:.1f} | {seconds[training['mode']][name]:.1f}"
        yield f"| {label} | {times} | {spread(training['spread'][key], 2, training[key])} |"
    bound = spread(training["spread"]["step_over_bound"], 3, training["step_over_bound"])
    yield f"a step with tools takes {bound} times the seconds of the simulated machine"
    yield f"{training['control_ms_per_call']:.2f} ms of CPU per call"
    yield f"within {100 * simulation['error']:.1f} % of the measured one"
    rounds = [
        abs(error) for found in simulation["errors"].values() for errors in found.values() for error in errors
    ]
    yield f"single rounds within {100 * max(rounds):.1f} %"
    ahead = f"{simulation['one_step_off']:.2f}"
    yield f"{simulation['gpu_rollout_bound']:.2f} times as fast as `sync` where episodes wait, `one_step_off` {ahead}"
    yield f"{simulation['gpu_update_bound']:.2f} times where updates are the longer part"


def test_the_figures_are_those_of_the_recorded_runs() -> None:
    page = pages()["docs/async.md"]
    lines, text = page.splitlines(), " ".join(page.split())
    assert [line for line in teams() if line not in lines] == []
    assert [
        said for said in benchmarks() if (said not in lines if said.startswith("|") else said not in text)
    ] == []
