"""Console output of a run: a live progress bar, one short line per step, and the table before/after
at the end.

On a terminal the bar stays at the bottom and the lines scroll above it; elsewhere (a file, CI) only
the lines are written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Optional, TypedDict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from verl.utils.accuracy import Estimate


@dataclass(frozen=True)
class Headline:
    """A value of the step line: its label, its possible metric keys (glob patterns, first match
    wins) and its format.
    """

    label: str
    keys: tuple[str, ...]
    template: str


HEADLINES = (
    Headline("reward", ("critic/score/mean", "critic/rewards/mean"), "reward {:.3f}"),
    Headline("accuracy", ("val-core/*/acc/mean@*", "val-core/*acc*", "val/*acc*"), "acc {:.1%}"),
    Headline("tokens/s", ("perf/throughput",), "{:.0f} tok/s"),
    Headline("seconds", ("timing_s/step", "perf/time_per_step"), "{:.1f} s"),
    Headline("staleness", ("trainer/staleness",), "staleness {:.1f}"),
    Headline("queue", ("fully_async/count/complete",), "queue {:.0f}"),
    Headline("trainer idle", ("trainer/idle_ratio",), "trainer idle {:.0%}"),
    Headline("rollouter idle", ("rollouter/idle_ratio",), "rollouter idle {:.0%}"),
)


class AccuracyRow(TypedDict):
    """A row of the final table: `name` is the team or an agent, `metric` is e.g. "avg@4"; None
    where nothing was measured.
    """

    name: str
    metric: str
    before: Optional[Estimate]
    after: Optional[Estimate]


def format_seconds(seconds: float) -> str:
    """Return `seconds` as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def headline_values(data: Mapping[str, float]) -> list[str]:
    """Return the formatted headlines that are in `data` (metric key to value)."""
    headline_texts = []
    for headline in HEADLINES:
        matches = (name for pattern in headline.keys for name in data if fnmatchcase(name, pattern))
        name = next(matches, None)
        if name is not None:
            headline_texts.append(headline.template.format(float(data[name])))
    return headline_texts


def format_step(step: int, total_steps: int, values: Sequence[str], eta_s: Optional[float]) -> str:
    """Return the line of a step, e.g. `step  3/40  reward 0.412  ETA 2:31`; `total_steps` 0 means
    unknown.
    """
    width = len(str(total_steps))
    parts = [f"step {step:>{width}}/{total_steps}" if total_steps else f"step {step}", *values]
    if eta_s is not None:
        parts.append(f"ETA {format_seconds(eta_s)}")
    return "  ".join(parts)


class StepDisplay:
    """Shows the steps of a run from `start_step` (0, or the step resumed from) to `total_steps` (0
    when unknown).

    Tests pass `console` and `clock` (seconds). Call `finish` in a `finally`, or the terminal's
    cursor stays hidden.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        console: Optional[Console] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console()
        self.total_steps = total_steps
        self._start_step = start_step
        self._clock = clock
        self._started = clock()
        self._live: Optional[Progress] = None
        if self.console.is_terminal:
            self._live = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[headline]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._task = self._live.add_task(
                "training", total=total_steps or None, completed=start_step, headline=""
            )
            self._live.start()

    def update(self, step: int, data: Mapping[str, float]) -> None:
        """Show `step` with its metrics; step 0 (validation before training) has no ETA."""
        if step == self._start_step:
            # the time before the first step is not part of the ETA
            self._started = self._clock()
        values = headline_values(data)
        eta = self._eta(step)
        self.console.print(
            format_step(step, self.total_steps, values, eta), markup=False, highlight=False, soft_wrap=True
        )
        if self._live is not None:
            parts = values if eta is None else [*values, f"ETA {format_seconds(eta)}"]
            self._live.update(self._task, completed=step, headline="  ".join(parts))

    def _eta(self, step: int) -> Optional[float]:
        finished_steps = step - self._start_step
        if finished_steps < 1 or step >= self.total_steps:
            return None
        return (self._clock() - self._started) / finished_steps * (self.total_steps - step)

    def finish(self) -> None:
        """Remove the bar; may be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def format_estimate(estimate: Optional[Estimate]) -> str:
    """Return an estimate as `62.5% [55.1, 69.4]`, or `-` for None."""
    if estimate is None:
        return "-"
    return f"{estimate.value:.1%} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def _accuracy_columns(*numbers: str) -> Table:
    """Return a table without rows: name, metric, and the columns `numbers`."""
    table = Table(title="Accuracy over tasks, 95 % confidence interval")
    for heading in ("", "metric"):
        table.add_column(heading, justify="left", no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def accuracy_table(rows: Sequence[AccuracyRow], step: int) -> Table:
    """Return the table of an evaluation: what stands under `before` in its rows is of one `step`."""
    table = _accuracy_columns(f"step {step}", "tasks")
    previous = None
    for row in rows:
        estimate = row["before"]
        table.add_row(
            row["name"] if row["name"] != previous else "",
            row["metric"],
            format_estimate(estimate),
            str(estimate.num_tasks) if estimate else "-",
        )
        previous = row["name"]
    return table


def before_after_table(rows: Sequence[AccuracyRow]) -> Table:
    """Return the table of `rows` with the change in percentage points; print it with
    `Console().print(table)`.
    """
    table = _accuracy_columns("before", "after", "change", "tasks")
    previous = None
    for row in rows:
        before = row["before"]
        after = row["after"]
        change = f"{100 * (after.value - before.value):+.1f}" if before and after else "-"
        latest = after or before
        table.add_row(
            row["name"] if row["name"] != previous else "",
            row["metric"],
            format_estimate(before),
            format_estimate(after),
            change,
            str(latest.num_tasks) if latest else "-",
        )
        previous = row["name"]
    return table


def print_table(table: Table, console: Optional[Console] = None) -> None:
    """Print a table with rows; at least 120 columns wide in a file or pipe, which have no width."""
    if not table.rows:
        return
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(table)
