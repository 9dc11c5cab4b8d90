"""The time that chat templates with a clock or a date show: one for a whole run, so that equal
messages are equal prompts.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

_CLOCK = re.compile(r"\bstrftime_now\b")


class TemplateTime:
    """The time of the run in this process: its start, or that of the run which it continues."""

    def __init__(self) -> None:
        self.value = datetime.now()

    def strftime(self, form: str) -> str:
        """Return the time as text, as templates ask for it by `strftime_now`."""
        return self.value.strftime(form)

    def state(self) -> str:
        """Return the time for a checkpoint."""
        return self.value.isoformat(timespec="seconds")

    def restore(self, state: str) -> None:
        """Take the time of a checkpoint."""
        self.value = datetime.fromisoformat(state)


TEMPLATE_TIME = TemplateTime()


def template_clock() -> dict[str, Any]:
    """Return the argument of a chat template that stands for the clock."""
    return {"strftime_now": TEMPLATE_TIME.strftime}


def shows_time(source: str) -> bool:
    """Return whether a chat template asks for the time."""
    return _CLOCK.search(source) is not None
