"""The files of a run's folder: which are there, which are of its last attempt, what is damaged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from verl.report.lines import GrowingFile, check_file
from verl.utils.names import listed
from verl.utils.plain import clean, flat, number

# Files and folders of which a run's folder has at least one.
MARKS = ("run.json", "metrics.jsonl", "trajectories", "config.yaml", "timeline.jsonl")
MOST_DAMAGED = 200
_EPISODES = re.compile(r"(train|val)_(\d+)(?:_(\d+))?\.jsonl")
_STEP = re.compile(r"step_(\d+)\.json")
_CHECKPOINT = re.compile(r"global_step_(\d+)")
_ROUNDED = ("logp", "old_logp", "entropy")
# File systems and clocks differ by this much, in seconds.
_CLOCK = 2.0


class ReportError(ValueError):
    """A folder of which no report can be made; the message has what was found and the fix."""


@dataclass(frozen=True, order=True)
class EpisodeFile:
    """A file of trajectories; `chunk` is its number among those of one validation."""

    step: int
    split: str
    chunk: int
    path: Path = field(compare=False)


@dataclass
class RunFolder:
    """The files of a run except for its trajectories; `read` reads what has changed.

    Attributes:
        path: the folder.
        state: run.json; None without one, as of an older version.
        config: configuration by dotted keys.
        trainer_state: that of the newest checkpoint; empty without one.
        episode_files: trajectories of the run, in order of steps.
        credit: step -> columns of `credit/step_N.json`.
        left_out: (step, uid) -> why the group was not trained.
        audit: contents of `audit/step_N.json`.
        notes: what a reader of the report must know of the files.
        damaged: file, line and cause of everything that could not be read.
    """

    path: Path
    state: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    trainer_state: dict[str, Any] = field(default_factory=dict)
    episode_files: list[EpisodeFile] = field(default_factory=list)
    credit: dict[int, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[tuple[int, str], str] = field(default_factory=dict)
    audit: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_folder(self.path)
        self.metrics = GrowingFile(self.path / "metrics.jsonl")
        self.timeline = GrowingFile(self.path / "timeline.jsonl")
        self._whole: dict[Path, tuple[int, int, Any]] = {}
        self._last_step: int | None = None

    def read(self) -> set[str]:
        """Read what has changed since the last call; return names of the changed parts: `state`,
        `config`, `metrics`, `spans`, `credit`, `audit`, `accuracy`.
        """
        self.notes = []
        self.damaged = []
        before = dict(self._whole)
        changed: set[str] = set()
        if self._read_growing(self.metrics):
            changed |= {"metrics", "steps"}
        self._last_step = max(self.metric_rows, default=None)
        if self._read_growing(self.timeline):
            changed.add("spans")
        state = self._whole_file(self.path / "run.json", self._load_json)
        self.state = _state_of(state) if isinstance(state, dict) else None
        config = self._whole_file(self.path / "config.yaml", _load_yaml)
        self.config = {key: clean(value, key.rpartition(".")[2]) for key, value in flat(config).items()}
        self._read_trainer_state()
        self._read_credit()
        self.audit = [
            content | {"step": step} for step, content in self._steps_of("audit") if isinstance(content, dict)
        ]
        for path in {*before, *self._whole}:
            if before.get(path, (0, 0))[:2] != self._whole.get(path, (0, 0))[:2]:
                changed.add(_PARTS.get(path.name) or path.parent.name)
        self.episode_files = self._own_episodes()
        self._note_what_is_missing()
        return changed

    @property
    def from_step(self) -> int | None:
        """Step from which the last attempt started; None if it is not known."""
        return None if self.state is None else _integer(self.state["attempt"].get("from_step"))

    @property
    def started(self) -> float | None:
        """Start of the last attempt in seconds since the epoch; None if it is not known."""
        return None if self.state is None else number(self.state["attempt"].get("started"))

    @property
    def metric_rows(self) -> dict[int, dict[str, Any]]:
        """Step -> its metrics, in order of steps."""
        rows = {step: row for row in self.metrics.rows if (step := _integer(row.get("step"))) is not None}
        return dict(sorted(rows.items()))

    @property
    def span_rows(self) -> list[dict[str, Any]]:
        """Spans of the last attempt and of what it continues."""
        rows = []
        for row in self.timeline.rows:
            step = _integer(row.get("step"))
            end = number(row.get("end"))
            if step is not None and end is not None and not self._is_earlier(step, end):
                rows.append(row)
        return rows

    def damage(self, path: Path, line: int | None, why: str) -> None:
        """Note a part of a file that cannot be read."""
        if len(self.damaged) < MOST_DAMAGED:
            self.damaged.append({"file": self.relative(path), "line": line, "why": why})

    def relative(self, path: Path) -> str:
        """Return the name of a file in the folder."""
        return path.relative_to(self.path).as_posix()

    def _read_growing(self, file: GrowingFile) -> bool:
        try:
            changed = file.read()
        except OSError as error:
            self.damage(file.path, None, error.strerror or str(error))
            return False
        for line in file.lines:
            if line.why or _integer((line.row or {}).get("step")) is None:
                self.damage(file.path, line.number, line.why or "it has no integer 'step'")
        return changed

    def _whole_file(self, path: Path, load: Any) -> Any:
        """Return the content of a file that is written whole, None if it is missing or damaged; it
        is loaded again only if its size or time has changed.
        """
        try:
            stat = path.stat()
            if path in self._whole and self._whole[path][:2] == (stat.st_size, stat.st_mtime_ns):
                return self._whole[path][2]
            check_file(stat)
            content = load(path)
        except (FileNotFoundError, NotADirectoryError):
            self._whole.pop(path, None)
            return None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            self._whole.pop(path, None)
            self.damage(path, None, " ".join(str(error).split())[:200])
            return None
        self._whole[path] = (stat.st_size, stat.st_mtime_ns, content)
        return content

    def _load_json(self, path: Path) -> Any:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of an object")
        return content

    def _load_credit(self, path: Path) -> dict[str, Any]:
        """Return the columns of a credit file as they are shown, and why groups were left out."""
        content = self._load_json(path)
        columns = content.get("columns")
        causes = content.get("left_out")
        if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
            raise ValueError("it has no 'columns' that are lists")
        return {
            "columns": {name: _credit_column(name, column) for name, column in columns.items()},
            "left_out": causes if isinstance(causes, dict) else {},
        }

    def _steps_of(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield (step, content) of the files of a folder `name` that belong to the attempt."""
        files = [(int(match[1]), path) for match, path in _matches(self.path / name, _STEP)]
        load = self._load_credit if name == "credit" else self._load_json
        for step, path in sorted(files):
            if not self._is_earlier(step, _modified(path)):
                content = self._whole_file(path, load)
                if content is not None:
                    yield step, content

    def _read_credit(self) -> None:
        self.credit = {}
        self.left_out = {}
        for step, content in self._steps_of("credit"):
            self.credit[step] = content["columns"]
            for uid, cause in content["left_out"].items():
                self.left_out[step, uid] = str(cause)

    def _read_trainer_state(self) -> None:
        folders = [(int(match[1]), path) for match, path in _matches(self.path / "checkpoints", _CHECKPOINT)]
        self.trainer_state = {}
        for step, folder in sorted(folders, reverse=True):
            file = folder / "trainer_state.json"
            if file.is_file() and not self._is_earlier(step, _modified(file)):
                self.trainer_state = self._whole_file(file, self._load_json) or {}
                return

    def _own_episodes(self) -> list[EpisodeFile]:
        """Return the files of trajectories of the run, without those of an earlier one."""
        files = []
        earlier = []
        for match, path in _matches(self.path / "trajectories", _EPISODES):
            file = EpisodeFile(int(match[2]), match[1], int(match[3] or 0), path)
            if not path.is_file():
                continue
            (earlier if self._is_earlier(file.step, _modified(path)) else files).append(file)
        if earlier:
            names = listed([file.path.name for file in sorted(earlier)], 4)
            self.notes.append(f"files of an earlier run in this folder are left out: {names}")
        return sorted(files)

    def _is_earlier(self, step: int, modified: float) -> bool:
        """Return whether a file or span of a step is of an earlier run than the last attempt."""
        if self.started is not None:
            # until a start says from which step it goes on, all files are those of the start before
            return self.from_step is not None and step > self.from_step and modified < self.started - _CLOCK
        # An older version does not say when it started: what it wrote of a step is older than the
        # line of the step in metrics.jsonl.
        last = self._last_step
        return last is not None and step > last and modified < self.metrics.modified - _CLOCK

    def _has_steps(self) -> bool:
        """Return whether there is something that only a start writes that comes to its first step."""
        parts = (self.metric_rows, self.timeline.rows, self.episode_files, self.credit, self.audit)
        return any(parts) or bool(self.trainer_state)

    def _note_what_is_missing(self) -> None:
        if self.state is None:
            self.notes.append("no run.json: the run is of an older version, or its file is damaged")
        elif self.from_step is None:
            rest = "the rest is of a start before it" if self._has_steps() else "there is nothing of it yet"
            self.notes.append(f"the last start has not come to its first step: {rest}")
        elif self.from_step:
            self.notes.append(f"resumed from step {self.from_step}")
        if not self.metric_rows:
            self.notes.append("no metrics: no step is complete, or trainer.logger lacks jsonl")
        if not self.episode_files:
            self.notes.append("no trajectories: none is complete, or trainer.log_trajectories=0")
        elif (number(self.config.get("trainer.log_trajectories")) or 0) > 0:
            self.notes.append(
                f"trainer.log_trajectories={self.config['trainer.log_trajectories']}: of each step a part of the "
                "training episodes is recorded, in whole groups; figures that are computed from episodes are of "
                "these, such as groups by reward and what alarms say of replies"
            )


_PARTS = {"run.json": "state", "config.yaml": "config", "trainer_state.json": "accuracy"}


def check_folder(path: Path) -> None:
    """Raise ReportError unless `path` is the folder of a run."""
    if not path.is_dir():
        what = "a file" if path.exists() else "not there"
        raise ReportError(f"{path} is {what}; expected the folder of a run (trainer.default_local_dir)")
    try:
        names = sorted(each.name for each in path.iterdir())
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}; correct its permissions") from error
    if any(name in MARKS for name in names) and not _CHECKPOINT.fullmatch(path.name):
        return
    around = path.absolute().parent.parent
    if _CHECKPOINT.fullmatch(path.name) and _is_run(around):
        raise ReportError(f"{path} is a checkpoint; name the folder of its run: {around}")
    runs = [str(folder) for folder in [*path.glob("*"), *path.glob("*/*")] if _is_run(folder)]
    content = listed(names, 4) if names else "nothing"
    fix = f"name one of its runs: {listed(sorted(runs), 4)}" if runs else "name the folder of a run"
    # A search for a team plays files of teams in one process: only its trainings are runs.
    for ledger in (path / "ledger.jsonl", path / "evolve" / "ledger.jsonl"):
        if ledger.is_file():
            fix = f"it is of a search, whose report is {ledger.with_name('report.md')}; {fix}"
    raise ReportError(f"{path} has none of {', '.join(MARKS[:3])} (in it: {content}); {fix}")


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file() or (folder / "trajectories").is_dir()


def _modified(path: Path) -> float:
    """Return when a file was last changed; infinity if it has just been moved away."""
    try:
        return path.stat().st_mtime
    except OSError:
        return math.inf


def _matches(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Path]]:
    """Yield the entries of a folder whose names match; nothing if there is no such folder."""
    if folder.is_dir():
        for path in folder.iterdir():
            if match := pattern.fullmatch(path.name):
                yield match, path


def _state_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json says, in which `attempt` is a mapping and `open_spans` a list of them."""
    state = clean(content)
    attempt = state.get("attempt")
    spans = state.get("open_spans")
    return state | {
        "attempt": attempt if isinstance(attempt, dict) else {},
        "open_spans": [span for span in spans if isinstance(span, dict)] if isinstance(spans, list) else [],
    }


def _credit_column(name: str, column: list[Any]) -> list[Any]:
    """Return a column as JSON that a browser reads, with fewer digits where no recomputation is
    compared with it.
    """
    if name in _ROUNDED:
        return [float(f"{value:.5g}") if isinstance(value, float) else value for value in map(number, column)]
    return [value if isinstance(value, str) else clean(value) for value in column]


def _load_yaml(path: Path) -> Any:
    content = path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # Ten nested aliases of a list may stand for a million values; a run writes none. Without a `*`
    # there is none, and the file is parsed once.
    if b"*" in content and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, loader)):
        raise ValueError("it has aliases (*name); expected a configuration as a run writes it")
    return yaml.load(content, loader)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
