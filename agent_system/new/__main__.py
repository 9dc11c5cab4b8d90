"""Write a workflow template into the current directory:

    verl-mas new my_flow

creates the folder `my_flow` with `team.py`, `env.py`, `README.md`, a test with scripted replies and
`train.sh`.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from agent_system.errors import AgentSystemError
from agent_system.registry import built_in_workflows

TEMPLATE = Path(__file__).parent / "template"


def write_workflow(name: str, parent: Path) -> Path:
    """Write the folder `name` into `parent` and return it.

    Raises:
        AgentSystemError: `name` is not a valid package name or is taken, or the folder exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise AgentSystemError(
            "a workflow is named like a Python package, in lower-case letters, digits and _, found "
            f"{name!r}; try my_flow"
        )
    folder = parent / name
    if folder.exists():
        raise AgentSystemError(f"{folder} exists, so nothing was written; choose another name")
    if name in built_in_workflows() or find_spec(name) is not None:
        raise AgentSystemError(
            f"{name!r} is the name of a built-in workflow or of an installed package; choose another name"
        )
    folder.mkdir()
    for source in sorted(path for path in TEMPLATE.iterdir() if path.is_file()):
        text = (
            source.read_text(encoding="utf-8")
            .replace("MyFlow", name.title().replace("_", ""))
            .replace("my_flow", name)
        )
        file = folder / source.name.replace("my_flow", name)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755 if file.suffix == ".sh" else 0o644)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(
        prog="verl-mas new", epilog="See docs/workflows.md.", description="Write a workflow template."
    )
    parser.add_argument("name", help="name of the workflow and its folder, such as my_flow")
    name = parser.parse_args(argv).name
    try:
        folder = write_workflow(name, Path.cwd())
    except AgentSystemError as error:
        parser.exit(2, f"error: {error}\n")
    sys.stdout.write(f"{folder}\ntest it:   python -m pytest {name}\ntrain it:  bash {name}/train.sh\n")


if __name__ == "__main__":
    main()
