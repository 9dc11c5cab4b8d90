"""Build the documentation site: `bash scripts/docs.sh [FOLDER]` (default `site/`); any warning is an error.

The pages are the Markdown files and the files that they link to, in the folders of the repository, and an API
reference from docstrings.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Title of a page of the API reference -> the modules on it.
API = {
    "Agents and workflows": [
        "agent_system.agent", "agent_system.orchestra", "agent_system.turn", "agent_system.environment",
        "agent_system.projection",
        "agent_system.memory", "agent_system.registry", "agent_system.testing",
    ],
    "Batches and engines": ["verl.protocol.data_proto", "verl.protocol.generate"],
    "Credit and losses": ["verl.trainer.plan.registry", "verl.trainer.ppo.core_algos.grouping"],
    "Workers": [
        "verl.single_controller.worker", "verl.single_controller.worker_group",
        "verl.single_controller.dispatch",
        "verl.workers.weight_transfer.base",
    ],
}  # fmt: skip
FOLDERS = ("docs", "agent_system/workflows", "recipe", "examples", "benchmarks", "patches")
GUIDE = (
    "training", "workflows", "graph", "frameworks", "policies", "data", "sampling", "rewards", "credit",
    "algorithms", "updates", "devices", "checkpoints", "metrics", "report", "alarms", "async", "engines",
    "models", "templates", "sandbox", "architecture", "config",
)  # fmt: skip
MORE = ("features", "upstream_map", "testing", "contributing")
LINK = re.compile(r"\]\(([^)#\s]+)")


def stage(pages: Path) -> list[object]:
    """Copy the pages into an empty folder, write those of the API, and return the navigation."""
    found = [ROOT / "README.md", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    names = sorted(str(path.relative_to(ROOT)) for path in found)
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        linked = [(ROOT / name).parent / link for link in LINK.findall(text) if "://" not in link]
        for file in [ROOT / name, *(path for path in linked if path.is_file())]:
            copy = pages / file.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    (pages / "api").mkdir()
    for title, modules in API.items():
        text = "\n".join([f"# {title}", "", *(f"::: {module}" for module in modules), ""])
        (pages / "api" / f"{slug(title)}.md").write_text(text)

    def section(folder: str) -> list[dict[str, str]]:
        return [{Path(name).parent.name: name} for name in names if name.startswith(f"{folder}/")]

    return [
        {"verl-mas": "README.md"},
        {"Guide": [f"docs/{name}.md" for name in GUIDE]},
        {"Examples": "examples/README.md"},
        {"Workflows": section("agent_system/workflows")},
        {"Recipes": section("recipe")},
        {"API": [{title: f"api/{slug(title)}.md"} for title in API]},
        {"More": [f"docs/{name}.md" for name in MORE] + ["benchmarks/README.md"]},
    ]


def slug(title: str) -> str:
    return title.lower().replace(" ", "_")


def inline(value: object) -> str:
    """Return a value as TOML, with tables on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(inline, value)) + "]" if isinstance(value, list) else json.dumps(value)


def build(project: Path, navigation: list[object]) -> Path:
    """Build the site of `project/pages` and return its folder. Exit with zensical's status if there is a
    warning.
    """
    template = (
        (ROOT / "docs" / "site.toml")
        .read_text()
        .replace('paths = ["."]', f"paths = [{json.dumps(str(ROOT))}]")
    )
    keys = f'[project]\ndocs_dir = "pages"\nsite_dir = "site"\nnav = {inline(navigation)}\n'
    (project / "zensical.toml").write_text(template.replace("[project]\n", keys, 1))
    status = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=project, check=False
    ).returncode
    if status:
        sys.exit(status)
    return project / "site"


def main() -> None:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    with tempfile.TemporaryDirectory(prefix="verl-mas-docs-") as folder:
        shutil.copytree(build(Path(folder), stage(Path(folder) / "pages")), site, dirs_exist_ok=True)
    sys.stdout.write(f"{site / 'index.html'}\n")


if __name__ == "__main__":
    main()
