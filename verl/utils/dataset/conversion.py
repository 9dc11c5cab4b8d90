"""The report of a script that converts a data set: what was kept, and what was dropped by cause."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from verl.utils.data_file import DatasetError
from verl.utils.dataset.files import Row

logger = logging.getLogger(__name__)


class Conversion:
    """The rows of one source.

    Attributes:
        rows: those that are kept.
    """

    def __init__(self, where: str, skip_incomplete: bool = False) -> None:
        """Set the name of the source, and whether rows that lack something are dropped instead of
        being an error.
        """
        self.rows: list[Row] = []
        self._where = where
        self._skip_incomplete = skip_incomplete
        self._dropped: dict[str, list[int]] = {}
        self._noted: dict[str, list[int]] = {}

    def note(self, index: int, what: str) -> None:
        """Count a row that is kept, but about which the report says something."""
        self._noted.setdefault(what, []).append(index)

    def drop(self, index: int, cause: str) -> None:
        """Leave out a row."""
        self._dropped.setdefault(cause, []).append(index)

    def lacks(self, index: int, cause: str, details: str = "") -> None:
        """Leave out a row that lacks something, or raise DatasetError if such rows are not skipped."""
        if not self._skip_incomplete:
            raise DatasetError(
                f"{self._where}, row {index}: {cause}; {details} (--skip-incomplete leaves such rows out)"
            )
        self.drop(index, cause)

    def report(self) -> list[Row]:
        """Log what was kept, noted and dropped by cause, each with its first row; return the rows.

        Raises:
            DatasetError: no row is kept.
        """
        causes = [
            f"{len(rows)} dropped: {cause} (first: row {rows[0]})" for cause, rows in self._dropped.items()
        ]
        notes = [f"{len(rows)} of them {what} (first: row {rows[0]})" for what, rows in self._noted.items()]
        text = "; ".join([f"{len(self.rows)} rows kept", *notes, *causes])
        if not self.rows:
            raise DatasetError(f"{self._where}: {text}")
        logger.info("%s: %s", self._where, text)
        return self.rows


def run_script(main: Callable[[], Any], *errors: type[Exception]) -> None:
    """Run the command line of a script; errors in its data, and `errors`, end it with one line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    user_errors: tuple[type[Exception], ...] = (DatasetError, OSError, *errors)
    try:
        main()
    except user_errors as error:
        sys.exit(f"error: {error}")
