"""A command line: its overrides, what a translation from other names has made of it, and its end by
an error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NoReturn


@dataclass
class Command:
    """A command line ready to be composed.

    Attributes:
        overrides: the overrides here, in the order of the command line.
        typed: key here -> the override in verl's names that set it.
        listed: one text per setting that was translated or left out, for the warning.
        translated: whether the command line has keys in verl's names.
        upstream: the project whose command it is, verl or Dr. MAS; empty for a command of this
            package, which names a team, even if single keys of it are translated.
        contradictions: pairs of settings of the command line that set a key to different values.
        defaults: keys that it leaves at the defaults of `upstream`, which differ here.
    """

    overrides: list[str] = field(default_factory=list)
    typed: dict[str, str] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    translated: bool = False
    upstream: str = ""
    contradictions: list[tuple[str, str]] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)

    def leave_out(self, keys: Collection[str]) -> None:
        """Remove settings that have no effect."""
        ineffective_overrides = [o for o in self.overrides if (split(o) or ("", ""))[0] in keys]
        self.overrides = [o for o in self.overrides if o not in ineffective_overrides]
        self.listed += [
            f"{o.lstrip('+')}: no effect"
            for o in ineffective_overrides
            if (split(o) or ("", ""))[0] not in self.defaults
        ]
        self.defaults = {key: value for key, value in self.defaults.items() if key not in keys}

    def warning(self) -> str:
        """Return what was translated in one line; empty: the names are those of this package."""
        return ""


def key_of(override: str) -> str:
    """Return the key of an override."""
    return override.lstrip("+~").partition("=")[0]


def split(override: str) -> tuple[str, str] | None:
    """Return key and value of an override; None for one that sets no value."""
    if "=" not in override or override.startswith(("-", "~", "hydra")):
        return None
    key, _, value = override.lstrip("+").partition("=")
    return key, value


def fail(message: str, status: int) -> NoReturn:
    """End the process with `message` on stderr, in one line unless it contains an indented list."""
    listed = "\n  " in message
    sys.stderr.write(f"error: {message if listed else ' '.join(message.split())}\n")
    sys.stderr.flush()
    sys.exit(status)


def log_to_terminal() -> None:
    """Write this project's messages from INFO on, and those of libraries from WARNING on:
    frameworks of teams log every request.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for package in ("agent_system", "verl", "recipe"):
        logging.getLogger(package).setLevel(logging.INFO)
