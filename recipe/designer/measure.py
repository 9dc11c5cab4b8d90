"""A Designer that learns to write teams for questions about products, beside the best fixed teams.

    python recipe/designer/measure.py --seeds 0

plays the twelve teams of `designs.py` as files, and trains the Designer with each level of `config.yaml`; it
writes `results.json` (rows `{"level", "seed", "before", "after", "valid_before", "role_tokens_after", ...}`)
and `curves.json` into this folder. Levels differ in the price of tokens, in who learns, and in the groups of
the roles: tasks, seeds and warm start are the same. Rows of an earlier call are kept unless they are measured
again. DEMOS is the number of demonstrations of the warm start.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from agent_system.workflows.graph import Team
from recipe.designer.designs import ENDINGS, cores
from recipe.runs import (
    ROOT,
    Curve,
    Row,
    measure_grid,
    overrides_of,
    run_module,
    success_curve,
    success_row,
    train_embedded,
)

HERE = Path(__file__).parent
PREPARE = ("recipe.designer.prepare", "--world", "designer")
FIXED = "fixed"
LABELS = {
    FIXED: ("tab:gray", "the best files"),
    "free": ("tab:blue", "Designer alone learns, no price"),
    "priced": ("tab:orange", "Designer alone learns, price"),
    "all_by_agent": ("tab:green", "all learn, by task"),
    "all_by_design": ("tab:red", "all learn, by design"),
}
Play = tuple[str, str, float, int]


def measure(level: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one level, or play the files; return its row and its curve, [step, success] of validations."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    demos = os.environ.get("DEMOS")
    if level == FIXED:
        row = play_files(config[FIXED], seed, demos)
        return {"level": level, "seed": seed} | row, [[0, row["single_acc"]]]
    lines = train_embedded(
        f"designer_{level}_seed{seed}", seed, config["common"] | config["levels"][level], demos, more, PREPARE
    )
    row = {"level": level, "seed": seed} | success_row(lines, {"valid": "design/valid"})
    for name, line in (("before", lines[0]), ("after", lines[-1])):
        design = line["val/agent/designer_agent/response_length/mean"]
        row |= {
            f"design_tokens_{name}": design,
            f"role_tokens_{name}": line["val/episode/tokens"] - design,
            f"critical_tokens_{name}": line["val/episode/critical_tokens"],
        }
    return row, success_curve(lines)


def play_files(settings: Mapping[str, Any], seed: int, demos: str | None) -> Row:
    """Play the twelve teams as files. The best one, and the best one of each kind of task, are chosen on
    training tasks and played on the test tasks.
    """
    arguments = [] if demos is None else ["--demos", demos]
    embedded = Path(run_module(*PREPARE, "--out", "outputs/embedded", "--seed", str(seed), *arguments)[-1])
    files = write_files(ROOT / "outputs" / "designer_files")
    tried = play(files, embedded, "train", 12, settings, seed)
    single = best(tried, files)
    kinds = {
        kind: best({key: p for key, p in tried.items() if key[1] == kind}, files)
        for kind in ENDINGS
        if kind != "both"
    }
    row: Row = {"tried": {core: summary([p for k, p in tried.items() if k[0] == core]) for core in files}}
    chosen = {core: files[core] for core in dict.fromkeys([single, *kinds.values()])}
    tested = play(chosen, embedded, "test", 16 * len(chosen), settings, seed)
    acc, tokens = summary([p for (core, _), p in tested.items() if core == single])
    row |= {"single": single, "single_acc": acc, "single_tokens": tokens}
    acc, tokens = summary([tested[core, kind] for kind, core in kinds.items()])
    return row | {"by_kind": kinds, "by_kind_acc": acc, "by_kind_tokens": tokens}


def write_files(folder: Path) -> dict[str, Path]:
    """Write every core with the Filer for shelves as a team file; return the files by core."""
    roles = Team.load(HERE / "roles.yaml").source.value["agents"]
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    steps, returned = ENDINGS["both"]
    for number, (core, first) in enumerate(cores().items()):
        called = {name: roles[name] for name in roles if f'"{name}"' in json.dumps([first, steps])}
        team = {"team": 1, "agents": called, "do": [*first, *steps], "return": returned}
        files[core] = folder / f"{number}.json"
        files[core].write_text(json.dumps(team))
    return files


def play(
    files: Mapping[str, Path], embedded: Path, split: str, times: int, settings: Mapping[str, Any], seed: int
) -> dict[tuple[str, str], list[tuple[float, int]]]:
    """Play tasks, each `times` times by a file that its group draws; return success and tokens of the
    episodes by core and kind of task.
    """
    import pandas

    tasks = pandas.concat([pandas.read_parquet(embedded / f"{split}.parquet")] * times, ignore_index=True)
    run_dir = ROOT / "outputs" / "verl-mas" / f"designer_{FIXED}_{split}_seed{seed}"
    run_dir.mkdir(parents=True, exist_ok=True)
    tasks.to_parquet(run_dir / "tasks.parquet")
    agents = dict.fromkeys(name for file in files.values() for name in Team.load(file).agents)
    for old in (run_dir / "trajectories").glob("*.jsonl"):
        old.unlink()
    run_module(
        "verl.trainer.main_ppo",
        f"actor_rollout_ref.model.path={embedded}/model",
        f"data.val_files={run_dir}/tasks.parquet",
        f"data.seed={seed}",
        f"trainer.default_local_dir={run_dir}",
        f"agent.orchestra.graph.files=[{','.join(map(str, files.values()))}]",
        f"agent.agent_ids=[{','.join(agents)}]",
        *overrides_of(settings),
    )
    keys = {Team.load(file).key(): core for core, file in files.items()}
    episodes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for path in (run_dir / "trajectories").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            episode = json.loads(line)
            calls = episode["calls"]
            kind = "shelf" if " shelf" in calls[0]["prompt"] else "code"
            tokens = sum(call["response_tokens"] for call in calls)
            episodes[keys[calls[0]["design"]], kind].append((episode["info"]["success"], tokens))
    return episodes


def summary(plays: Sequence[Sequence[tuple[float, int]]]) -> tuple[float, float]:
    """Return accuracy and mean tokens of episodes of several kinds."""
    together = [episode for episodes in plays for episode in episodes]
    return (
        round(sum(right for right, _ in together) / len(together), 4),
        round(sum(tokens for _, tokens in together) / len(together), 2),
    )


def best(plays: Mapping[tuple[str, str], Sequence[tuple[float, int]]], files: Mapping[str, Path]) -> str:
    """Return the core of the highest accuracy."""
    return max(files, key=lambda core: summary([p for (name, _), p in plays.items() if name == core])[0])


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "level", LABELS, measure)
