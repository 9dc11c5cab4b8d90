"""What a run records of its steps for readers: the credit of trained rows, and tables of validated
episodes for trackers. An error of a recorder is logged once and ends no run; a disk that is full does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.record import credit_path, write_credit
from verl.utils.disk import DiskError, writing
from verl.utils.tracking import Tracking

logger = logging.getLogger(__name__)

COLUMNS = (
    "task_id", "data_source", "episode", "team_reward", "success", "turns", "failure", "first prompt",
    "replies", "answer",
)  # fmt: skip
LONGEST_TEXT = 4000


class StepRecords:
    """Writes `credit/`, and sends tables to `tracking`.

    Args:
        run_dir: output folder of the run.
        algorithm: keys under `algorithm`.
        tracking: destination of tables.
    """

    def __init__(self, run_dir: Path, algorithm: AlgorithmConfig, tracking: Tracking) -> None:
        self.run_dir = run_dir
        self.algorithm = algorithm
        self.tracking = tracking
        self._warned: set[str] = set()

    def write_credit(self, step: int, samples: StepSamples, batch: DataProto) -> dict[str, list[Any]] | None:
        """Write `credit/step_<number>.json` of a step that was trained, and return its columns; None
        after an error.

        Args:
            step: its number.
            samples: what was collected for it.
            batch: its rows with advantages.

        Raises:
            DiskError: the file cannot be written.
        """
        try:
            with writing(credit_path(self.run_dir, step)):
                return write_credit(self.run_dir, step, samples, batch, self.algorithm)
        except DiskError:
            raise
        except Exception as error:
            # such as of rows of a user's own estimator
            self._warn_once("credit/ is incomplete", error)
            return None

    def log_episodes(self, episodes: Sequence[FinishedEpisode], step: int) -> None:
        """Send episodes of a validation to the trackers that show tables.

        Raises:
            DiskError: a tracker's file cannot be written.
        """
        if not self.tracking.takes_tables:
            return
        try:
            rows = [_row(episode.to_json()) for episode in episodes]
            self.tracking.log_table("val/episodes", COLUMNS, rows, step)
        except DiskError:
            raise
        except Exception as error:  # whatever a tracker raises
            self._warn_once("a table of episodes was not sent", error)

    def _warn_once(self, what: str, error: Exception) -> None:
        if what not in self._warned:
            logger.warning("%s: %s: %s", what, type(error).__name__, error)
        self._warned.add(what)


def _row(entry: dict[str, Any]) -> list[Any]:
    """Return the values of `COLUMNS` of an episode: numbers, texts and None. What a model wrote is in
    the texts as it is.
    """
    calls = [call for call in entry.get("calls", ()) if call.get("committed", True)]
    replies = "\n\n".join(f"{call['agent_id']}: {call['reply']}" for call in calls)
    success = entry.get("info", {}).get("success")
    return [
        str(entry["task_id"]),
        str(entry["data_source"]),
        int(entry["index"]),
        float(entry["team_reward"]),
        None if success is None else float(success),
        int(entry["turns"]),
        _cut(entry["failure"] or ""),
        _cut(calls[0]["prompt"] if calls else ""),
        _cut(replies),
        _cut(entry["answer"]),
    ]


def _cut(text: str) -> str:
    """Return the beginning of a text, in which lone surrogates, which UTF-8 does not have, are
    escaped.
    """
    whole = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
    return whole.encode("utf-8", "backslashreplace").decode("utf-8")
