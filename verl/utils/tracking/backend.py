"""The protocol of tracking backends, and the check that those of a run can start."""

import importlib.util
import netrc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Protocol
from urllib.parse import urlsplit

# Module of this package with a class `<Name>Backend` -> the package that it needs. They open in
# this order: the console last, so that its bar is not shown when another one fails.
BACKENDS: dict[str, Optional[str]] = {
    "jsonl": None,
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "console": "rich",
}


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that backends need.

    `resume_step` is the step of the checkpoint resumed from, None in a fresh run; `total_steps` is
    0 when unknown.
    """

    project_name: str
    experiment_name: str
    run_dir: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    total_steps: int = 0
    resume_step: Optional[int] = None

    def earlier_id(self, file: Path) -> Optional[str]:
        """Return what a tracker has written into `file` of the run that is resumed; None in a fresh
        run, or one that did not use that tracker.
        """
        if self.resume_step is None or not file.exists():
            return None
        return file.read_text(encoding="utf-8").strip()


class Backend(Protocol):
    """One destination of metrics. One that shows tables also has `log_table(name, columns, rows,
    step)`.
    """

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Log the metrics of `step`; a second call for the same step adds to them."""

    def finish(self) -> None:
        """Flush and close."""


def check_backends(names: Sequence[str]) -> None:
    """Raise ValueError for an unknown or repeated name, or wandb without an API key, and
    ModuleNotFoundError for a missing package.
    """
    for name in names:
        if name not in BACKENDS:
            raise ValueError(f"trainer.logger has {name!r}; expected any of {', '.join(BACKENDS)}")
        package = BACKENDS[name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"trainer.logger has {name!r}, but the package {package!r} is not installed; pip "
                f"install {package}, or leave {name!r} out"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"trainer.logger names a backend twice: {list(names)}")
    if "wandb" in names and not _wandb_can_start():
        raise ValueError(
            "trainer.logger has 'wandb', but there is no API key: run `wandb login`, set "
            "WANDB_API_KEY, or set WANDB_MODE=offline to keep metrics in the run's folder"
        )


def _wandb_can_start() -> bool:
    """Return whether wandb starts without asking for a key: it is offline, or the environment or
    the netrc file has one.
    """
    if os.environ.get("WANDB_MODE", "online") not in ("online", "run", "shared"):
        return True
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for file in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if file and netrc.netrc(os.path.expanduser(file)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
