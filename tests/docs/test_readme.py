"""What the pages promise: links lead somewhere, code runs, keys and files exist, and the README's workflow
trains.
"""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from agent_system.evolve.settings import EvolveConfig
from tests.docs.pages import anchors, blocks, code_spans, first_column, links, pages
from tests.house.source import ROOT
from verl.compat.keys import find_verl_key
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys
from verl.trainer.plan.command_line import FREE_FORM

KEYS = {*keys(RunConfig), *keys(EvolveConfig)}
KEY = re.compile(
    r"(?<![\w./])(?:data|actor_rollout_ref|critic|algorithm|reward|agent|env|evolve|rollout|sandbox|trainer|ray_init)\.[\w.]*\w"
)
# Dotted names that look like keys and are none: files, and methods of the agent side.
NOT_KEYS = {"data.pt", "env.step", "env.py"}
RUN_FOLDER = Path("outputs") / "verl-mas" / "draft"


def is_key(name: str) -> bool:
    """A key, a section of keys, an option of a workflow, or any of these seen from `actor_rollout_ref`."""
    full = (name, f"actor_rollout_ref.{name}")
    return name.startswith(FREE_FORM) or any(
        key == f or key.startswith(f + ".") for f in full for key in KEYS
    )


@pytest.mark.parametrize("page", list(pages()))
def test_internal_links_lead_somewhere(page: str) -> None:
    for target in links(pages()[page]):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), (
            f"{page}: no heading for {target}"
        )


@pytest.mark.parametrize("page", list(pages()))
def test_keys_and_files_that_a_page_names_exist(page: str) -> None:
    text = pages()[page]
    fenced = [b.text for b in blocks("bash") + blocks("text") if b.page == page]
    keys = {key for part in code_spans(text) + fenced for key in KEY.findall(part)} - NOT_KEYS
    # its command is in verl's names, and tests/docs/test_commands.py composes it
    if page == "docs/upstream_map.md":
        keys -= {key for part in fenced for key in KEY.findall(part) if find_verl_key(key)}
    assert [key for key in sorted(keys) if not is_key(key)] == []
    files = [
        s
        for s in code_spans(text)
        if re.fullmatch(r"(verl|agent_system|tests|examples|scripts|docs|benchmarks|recipe)/[\w./-]+", s)
    ]
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("block", blocks("python"), ids=lambda b: b.page)
def test_python_blocks_compile(block) -> None:
    compile(block.text, block.page, "exec")


def test_the_code_of_the_workflow_page_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_system import AgentRegistry, EnvRegistry, OrchestraRegistry

    module = ModuleType("docs_workflows")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        for block in blocks("python"):
            if block.page == "docs/workflows.md":
                exec(compile(block.text, block.page, "exec"), module.__dict__)
    finally:
        for agent in ("Planner", "Critic", "Scout", "Clerk"):
            AgentRegistry.remove(agent, orchestra="errand")
        OrchestraRegistry.remove("errand")
        EnvRegistry.remove("town")


def test_every_benchmark_is_described() -> None:
    described = first_column(pages()["benchmarks/README.md"], "Benchmarks")
    assert sorted(described) == sorted(
        f"python benchmarks/{file.name}" for file in (ROOT / "benchmarks").glob("*.py")
    )


def test_the_readme_is_short_and_its_plot_is_what_the_script_draws(tmp_path: Path) -> None:
    from scripts.plot_curves import PANELS, plot, runs

    assert len(pages()["README.md"].splitlines()) <= 150
    seeds = {title: sorted(runs(recipe, start)) for title, recipe, start, _ in PANELS}
    assert seeds == {title: ["0", "1", "2"] for title, *_ in PANELS}
    plot(tmp_path / "curves.svg")
    drawn, kept = [
        re.findall(r'd="M [^"]+"', file.read_text())
        for file in (tmp_path / "curves.svg", ROOT / "docs" / "curves.svg")
    ]
    assert drawn == kept, "docs/curves.svg is out of date; run: python scripts/plot_curves.py"


def environment(python: str = sys.executable, **more: str) -> dict[str, str]:
    """The environment of a command: `python` is this interpreter, or another of that name, and this checkout
    is importable.
    """
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run_block(name: str, folder: Path, model: Path, python: str = sys.executable) -> None:
    """Run the bash block marked `run: name` in a folder, with the Python block marked `file: name.py` in it
    where there is one.
    """
    for file in blocks("python"):
        if file.marker == f"file: {name}.py":
            (folder / f"{name}.py").write_text(file.text)
    [command] = [b for b in blocks("bash") if b.marker == f"run: {name}"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text],
        cwd=folder,
        env=environment(python, MODEL_PATH=str(model)),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def draft_run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, forked_python: str) -> Path:
    """The folder in which the README's workflow was trained by the README's command."""
    folder = tmp_path_factory.mktemp("draft")
    run_block("draft_team", folder, tiny_model_dir, forked_python)
    return folder


@pytest.fixture(scope="module")
def metrics(draft_run: Path) -> list[dict]:
    """Lines of its metrics.jsonl."""
    return [json.loads(line) for line in (draft_run / RUN_FOLDER / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.e2e
def test_the_readme_workflow_trains_two_steps(metrics: list[dict]) -> None:
    assert [line["step"] for line in metrics] == [0, 1, 2]
    for agent in ("writer", "editor"):
        assert sum(line[f"wg/{agent}/actor/grad_norm"] for line in metrics[1:]) > 0


@pytest.mark.e2e
def test_a_run_leaves_what_the_readme_says(draft_run: Path) -> None:
    promised = first_column(pages()["README.md"], "What a run leaves")
    assert len(promised) > 4
    assert [
        path for path in promised if not (draft_run / RUN_FOLDER / path.replace("_N", "_2")).exists()
    ] == []
    for inside in (
        "actor/writer/huggingface/config.json",
        "actor/editor/huggingface/config.json",
        "data.pt",
        "trainer_state.json",
    ):
        assert (draft_run / RUN_FOLDER / "checkpoints" / "global_step_2" / inside).is_file()


@pytest.mark.e2e
def test_every_metric_of_a_run_has_a_meaning(metrics: list[dict]) -> None:
    named = [re.sub(r"<\w+>", "*", name) for name in first_column(pages()["docs/metrics.md"], "Metrics")]
    produced = {name for line in metrics for name in line} - {"step"}
    assert [
        name for name in sorted(produced) if not any(fnmatchcase(name, pattern) for pattern in named)
    ] == []


@pytest.mark.e2e
def test_every_step_has_the_metrics_that_runs_are_compared_by(metrics: list[dict]) -> None:
    by_agent = ("reward/mean", "valid_rate", "calls", "response_length/mean", "truncated_replies")
    by_group = (
        "actor/entropy",
        "actor/grad_norm",
        "actor/lr",
        "actor/pg_clipfrac",
        "timing_s/gen",
        "timing_s/update_actor",
    )
    for line in metrics[1:]:
        for agent in ("writer", "editor"):
            wanted = {f"agent/{agent}/{name}" for name in by_agent} | {
                f"wg/{agent}/{name}" for name in by_group
            }
            assert sorted(wanted - line.keys()) == []
