"""Searches for a team, beside hand-written teams and a random search of equal budget.

    python recipe/evolve/measure.py --worlds lookup math --seeds 0 1 2

searches with the policies `evolution`, `tree` and `random` of `evolve.policy`, plays the file that each has
chosen and the hand-written teams of `teams.py` on the held-out tasks, and writes `results.json` (rows
`{"world", "weights", "seed", "team", "acc", "low", "high", "reply_tokens", "prompt_tokens",
"critical_tokens", "search_tokens", "file"}`) and the files of the teams into this folder. Rows that are
there are not measured again unless `--again` is given. Tokens are means over episodes; `search_tokens`
are those that the engine generated for the search, without the held-out tasks. `--teams short
short_trained` searches for three generations without training and with it: their rows are of the play of
the held-out tasks in the search itself, with the weights that it ended with. DEMOS is the number of
demonstrations of the warm start. `--weights trained` are those that a training of the workflow's own team
makes of it, one policy for all roles (`training` in `config.yaml`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from agent_system.evolve.replay import ReplayMemory
from agent_system.launch.evolving import load_settings, open_search
from agent_system.record import EpisodeRecord
from agent_system.rollout.metrics import critical_tokens
from agent_system.workflows.graph.team import Team
from recipe.evolve.teams import TEAMS, start_files
from recipe.runs import ROOT, Row, make_parser, overrides_of, run_module, train_embedded
from verl.utils.accuracy import estimate_avg

HERE = Path(__file__).parent
COLUMNS = ("world", "weights", "seed", "team")
WARM = "warm"
TRAINED = "trained"
SEARCHES = ("evolution", "tree", "random")
# Searches of three generations with `evolution`; the second one trains between them.
SHORT = ("short", "short_trained")
PREPARE = {
    "lookup": ("recipe.evolve.prepare", "--world", "evolve"),
    "math": ("examples.embedded.prepare", "--world", "math"),
}


def embedded(world: str, seed: int) -> Path:
    """Return the folder with tasks and warm-started model, created if it is missing."""
    demos = ["--demos", os.environ["DEMOS"]] if os.environ.get("DEMOS") else []
    return Path(
        run_module(
            *PREPARE[world], "--out", "outputs/embedded", "--seed", str(seed), "--threads", "1", *demos
        )[-1]
    )


def model_folder(config: Mapping[str, Any], world: str, weights: str, seed: int) -> Path:
    """Return the folder of a model; that of a training is made if it is missing."""
    if weights not in (WARM, TRAINED):
        return Path(weights)
    if weights == WARM:
        return embedded(world, seed) / "model"
    run = run_folder(world, weights, seed, "training")
    exported = run / "exported"
    if not exported.exists():
        settings = config["common"] | config["worlds"][world] | config["training"][world]
        train_embedded(run.name, seed, settings, os.environ.get("DEMOS"), (), PREPARE[world])
        run_module("verl.model_merger", "--checkpoint", str(run), "--out", str(exported))
    (policy,) = (path.parent for path in exported.glob("*/config.json"))
    return policy


def inputs(config: Mapping[str, Any], world: str, weights: str, seed: int) -> dict[str, Any]:
    """Return the keys of tasks and model."""
    folder = embedded(world, seed)
    return {
        "actor_rollout_ref.model.path": str(model_folder(config, world, weights, seed)),
        "data.train_files": str(folder / "train.parquet"),
        "data.val_files": str(folder / "test.parquet"),
        "data.seed": seed,
    }


def run_folder(world: str, weights: str, seed: int, team: str) -> Path:
    """Return the folder of a search or of a play."""
    return ROOT / "outputs" / "verl-mas" / f"evolve_{world}_{Path(weights).name}_seed{seed}_{team}"


def search(
    config: Mapping[str, Any], world: str, weights: str, seed: int, team: str, more: Sequence[str]
) -> tuple[Path, int]:
    """Search, or go on with a search; return the chosen file and the tokens that it has cost.

    Args:
        config: `config.yaml`.
        world, weights, seed: of the tasks and the model.
        team: of `SEARCHES` or `SHORT`.
        more: further `key=value`.
    """
    folder = run_folder(world, weights, seed, team)
    ledger = folder / "evolve" / "ledger.jsonl"
    if not ledger.exists() or events_of(ledger)[-1]["event"] != "chosen":
        start, parts = start_files(world, ROOT / "outputs" / "evolve_files")
        settings = config["common"] | config["worlds"][world] | config["search"][world]
        if team in SHORT:
            settings |= config[team]
        run_module(
            "agent_system.evolve",
            f"evolve.start=[{start}]",
            f"evolve.parts=[{parts}]",
            f"evolve.policy={team if team in SEARCHES else SEARCHES[0]}",
            f"trainer.default_local_dir={folder}",
            *overrides_of(settings | inputs(config, world, weights, seed)),
            *more,
        )
    tokens = sum(line["engine_tokens"] for line in events_of(ledger) if line["event"] in ("play", "confirm"))
    return folder / "evolve" / "best.yaml", tokens


def events_of(ledger: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a ledger."""
    return [json.loads(line) for line in ledger.read_text().splitlines(keepends=True) if line.endswith("\n")]


def play(
    config: Mapping[str, Any],
    world: str,
    weights: str,
    seed: int,
    files: Mapping[str, Path],
    more: Sequence[str],
) -> Iterator[tuple[str, Row]]:
    """Play files on the held-out tasks with the same engine and seeds, each task `val_n` times; yield their
    names and columns.
    """
    folder = run_folder(world, weights, seed, "played")
    (folder / "evolve" / "teams").mkdir(parents=True, exist_ok=True)
    settings = config["common"] | config["worlds"][world] | inputs(config, world, weights, seed)
    keys = [f"trainer.default_local_dir={folder}", *overrides_of(settings)]
    keys += [key for key in more if not key.startswith("evolve.")]
    every_file = ",".join(map(str, files.values()))
    opened_search = open_search(load_settings([f"evolve.start=[{every_file}]"]), keys)
    # equal requests of different teams are made once: these play much of the same
    memory = ReplayMemory()
    unserved = opened_search.unserved(memory)
    _, tasks = opened_search.tasks(unserved)
    with opened_search.serving(unserved) as teams:
        for name, file in files.items():
            collector = teams.collector(Team.load(file))
            result = asyncio.run(
                collector.collect(tasks, config["play"][world]["episodes"], step=0, validate=True)
            )
            memory.commit()
            yield name, columns_of(result.episodes)


def held_out_columns(ledger: Path) -> Row:
    """Return the columns of the chosen file of a search, from its play of the held-out tasks."""
    events = events_of(ledger)
    chosen = events[-1]["file"]
    rows = [row for e in events if e["event"] == "held_out" for row in e["episodes"].get(chosen, ())]
    of_tasks = estimate_avg([row[0] for row in rows], range(len(rows)))
    return {
        "acc": round(of_tasks.value, 4),
        "low": round(of_tasks.low, 4),
        "high": round(of_tasks.high, 4),
        "reply_tokens": round(sum(row[1] for row in rows) / len(rows), 2),
        "prompt_tokens": None,
        "critical_tokens": round(sum(row[2] for row in rows) / len(rows), 2),
    }


def columns_of(episodes: Sequence[EpisodeRecord]) -> Row:
    """Return accuracy with its interval over tasks, and means of tokens; a failed episode scores 0."""
    scores = [0.0 if episode.failed else episode.team_reward for episode in episodes]
    of_tasks = estimate_avg(scores, [episode.task_id for episode in episodes])

    def mean(count: Callable[[EpisodeRecord], int]) -> float:
        return round(sum(map(count, episodes)) / len(episodes), 2)

    return {
        "acc": round(of_tasks.value, 4),
        "low": round(of_tasks.low, 4),
        "high": round(of_tasks.high, 4),
        "reply_tokens": mean(lambda episode: sum(s.response_tokens for s in episode.samples)),
        "prompt_tokens": mean(lambda episode: sum(s.prompt_tokens for s in episode.samples)),
        "critical_tokens": mean(critical_tokens),
    }


def measure(
    out: Path, more: Sequence[str], world: str, weights: str, seed: int, teams: Sequence[str]
) -> Iterator[Row]:
    """Search with the policies among the teams, and play all teams; yield their rows."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    folder = out / "teams"
    folder.mkdir(exist_ok=True)
    files: dict[str, Path] = {}
    tokens: dict[str, int] = {}
    for team in teams:
        if team in (*SEARCHES, *SHORT):
            chosen, tokens[team] = search(config, world, weights, seed, team, more)
            files[team] = folder / f"{world}_{Path(weights).name}_seed{seed}_{team}.yaml"
            shutil.copy(chosen, files[team])
        else:
            files[team] = folder / f"{world}_{team}.yaml"
            TEAMS[world]()[team].save(files[team])
    columns_by_team = {
        team: held_out_columns(run_folder(world, weights, seed, team) / "evolve" / "ledger.jsonl")
        for team in SHORT
        if team in files
    }
    others = {team: file for team, file in files.items() if team not in SHORT}
    plays = play(config, world, weights, seed, others, more) if others else ()
    for team, columns in chain(columns_by_team.items(), plays):
        row = dict(zip(COLUMNS, (world, weights, seed, team), strict=True))
        yield row | columns | {"search_tokens": tokens.get(team), "file": f"teams/{files[team].name}"}


def at_equal_tokens(rows: Sequence[Row], kind: str, evolved: Row) -> Row:
    """Return the team of a kind (`vote`, `checked`) that has the fewest reply tokens of those with at
    least as many as an evolved one; the largest, if none has.
    """
    of_kind = [row for row in rows if re.fullmatch(rf"{kind}_\d+", row["team"]) and same_run(row, evolved)]
    ranked = sorted(of_kind, key=lambda row: row["reply_tokens"])
    return next((row for row in ranked if row["reply_tokens"] >= evolved["reply_tokens"]), ranked[-1])


def best_hand_written(rows: Sequence[Row], evolved: Row) -> Row:
    """Return the hand-written team with the highest accuracy on the held-out tasks: it is chosen on them,
    which favours it.
    """
    hand_teams = [row for row in rows if row["search_tokens"] is None and same_run(row, evolved)]
    return max(hand_teams, key=lambda row: row["acc"])


def same_run(row: Row, other: Row) -> bool:
    """Return whether rows are of the same world, weights and seed."""
    return all(row[name] == other[name] for name in ("world", "weights", "seed"))


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table of the README: a search each, beside what it is compared with."""
    lines = []
    for row in rows:
        measured = {r["team"].partition("_")[0] for r in rows if same_run(r, row)}
        if row["team"] not in SEARCHES or not measured >= {"alone", "vote", "checked"}:
            continue
        others = [
            next(r for r in rows if r["team"] == "alone" and same_run(r, row)),
            at_equal_tokens(rows, "vote", row),
            at_equal_tokens(rows, "checked", row),
            best_hand_written(rows, row),
        ]
        interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        cells = [f"**{100 * row['acc']:.1f}** {interval} / {row['reply_tokens']:.1f}"]
        cells += [f"{r['team']}: {100 * r['acc']:.1f} / {r['reply_tokens']:.1f}" for r in others]
        start = f"| {row['world']} | {row['weights']} | {row['seed']} | `{row['team']}` | "
        lines.append(f"{start}{row['search_tokens']:,} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure the rows of the command line that are missing, one after the other."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--worlds", nargs="+", choices=tuple(PREPARE), default=list(PREPARE))
    parser.add_argument("--weights", default=WARM, help="warm, trained, or the folder of a model")
    parser.add_argument("--teams", nargs="+", help="policies of a search and names of teams.py")
    parser.add_argument("--again", action="store_true", help="measure rows that are there again")
    args = parser.parse_args()
    results = args.out / "results.json"
    rows = {key_of(row): row for row in (json.loads(results.read_text()) if results.exists() else [])}
    for world, seed in product(args.worlds, args.seeds):
        missing = [
            team
            for team in args.teams or (*SEARCHES, *TEAMS[world]())
            if args.again or (world, args.weights, seed, team) not in rows
        ]
        if not missing:
            continue
        for row in measure(args.out, args.overrides, world, args.weights, seed, missing):
            rows[key_of(row)] = row
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            results.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")
    sys.stdout.write("\n".join(table([rows[key] for key in sorted(rows)])) + "\n")


def key_of(row: Mapping[str, Any]) -> tuple[str, str, int, str]:
    """Return what identifies a row."""
    return row["world"], row["weights"], row["seed"], row["team"]


if __name__ == "__main__":
    main()
