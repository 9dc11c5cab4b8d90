"""Whether an error was raised by a chat template, and what it says: templates refuse roles and
orders of messages in this way.
"""

from __future__ import annotations

import traceback

from jinja2 import TemplateError

_COMPILED = "<template>"  # jinja's name of the file of a compiled template


def template_cause(error: BaseException) -> str | None:
    """Return what a chat template says of the messages that it cannot show; None for an error that
    was raised elsewhere.
    """
    frames = traceback.walk_tb(error.__traceback__)
    if isinstance(error, TemplateError) or any(frame.f_code.co_filename == _COMPILED for frame, _ in frames):
        return str(error) or type(error).__name__
    return None
