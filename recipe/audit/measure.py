"""Which estimator knows what mattered: audits of three small teams in the middle of their training.

    python recipe/audit/measure.py --worlds math plan_path search --seeds 0 1 2

trains each team for the few steps of `config.yaml` and audits its checkpoint (`verl-mas audit`). It writes
`results.json` into this folder, rows `{"world", "seed", "step", "reward", "restored", "replies", "effects",
"estimators", ...}`: of every agent the effect of its choice with its interval, of every estimator the rank
correlation of its advantages with what a reply was worth, and its tokens. `curves.json` has the reward of
the training steps. All seeds of a world start from the warm start of seed 0; a seed sets the order of the
tasks and all that is sampled. Rows of an earlier call are kept unless they are measured again. DEMOS is the
number of demonstrations of the warm start, in place of that of `config.yaml`; a few hundred give a quick
run whose teams know little.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT, Curve, Row, make_parser, measure_all, overrides_of, read_metrics, run_module

HERE = Path(__file__).parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text())
WORLDS = tuple(CONFIG["worlds"])
CORPUS = "corpus.jsonl"
REWARD = "critic/score/mean"


def measure(world: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train a team and audit it; return its row and the curve [step, mean reward of the rows]."""
    demos = os.environ.get("DEMOS") or str(CONFIG["worlds"][world]["demos"])
    prepare = ["--world", world, "--out", "outputs/embedded", "--seed", "0", "--threads", "1"]
    embedded = run_module("examples.embedded.prepare", *prepare, "--demos", demos)[-1]
    run_dir = ROOT / "outputs" / "verl-mas" / f"audit_{world}_seed{seed}"
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    corpus = Path(ROOT, embedded, CORPUS)
    run_module(
        "verl.trainer.main_ppo",
        f"actor_rollout_ref.model.path={embedded}/model",
        f"data.train_files={embedded}/train.parquet",
        f"data.seed={seed}",
        f"trainer.default_local_dir={run_dir}",
        *([f"env.params.corpus={corpus}"] if corpus.is_file() else []),
        *overrides_of(CONFIG["common"] | CONFIG["worlds"][world]["keys"]),
        *more,
    )
    lines = read_metrics(run_dir / "metrics.jsonl")
    sizes = [f"--{name}={number}" for name, number in CONFIG["worlds"][world]["audit"].items()]
    began = time.monotonic()
    run_module("agent_system.audit", str(run_dir), f"--seed={seed}", *sizes)
    seconds = round(time.monotonic() - began, 1)
    file = max((run_dir / "audit").glob("step_*.json"))
    row = summarise(world, seed, json.loads(file.read_text())) | {"audit_seconds": seconds}
    return row, [[line["step"], line[REWARD]] for line in lines if REWARD in line]


def summarise(world: str, seed: int, audit: dict[str, Any]) -> Row:
    """Return the row of an audit: effects by agent in all turns, estimators over all agents and of each."""
    effects = {
        line["agent"]: {name: line[name] for name in ("effect", "low", "high", "share", "no_other_action")}
        for line in audit["table"]
        if line["turn"] is None
    }
    columns = ("spearman", "shuffled_high", "reliability", "zero_advantages", "verdict", "tokens")
    estimators: dict[str, dict[str, Any]] = {}
    for line in audit["estimators"]:
        numbers = {name: line[name] for name in columns}
        if line["agent"] is None:
            estimators[line["name"]] = numbers | {"agents": {}}
        else:
            estimators[line["name"]]["agents"][line["agent"]] = numbers
    sizes = ("step", "decisions", "alternatives", "continuations", "replies", "tokens")
    return {
        "world": world,
        "seed": seed,
        **{name: audit[name] for name in sizes},
        "reward": audit["episodes"]["mean"],
        "restored": audit["restored"],
        "effects": effects,
        "estimators": estimators,
        "left_out": sorted(audit["left_out"]),
    }


def main() -> None:
    """Measure the worlds and seeds of the command line."""
    parser = make_parser(__doc__, HERE)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    args = parser.parse_args()
    calls = [
        partial(measure, world, seed, args.overrides) for world, seed in product(args.worlds, args.seeds)
    ]
    measure_all(calls, args.jobs, args.out, ("world", "seed"))


if __name__ == "__main__":
    main()
