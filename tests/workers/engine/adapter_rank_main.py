"""One rank of the two-rank test of adapters: `adapter_rank_main.py FOLDER MODEL`, with rank and address in
the environment.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.workers.engine.builders import (
    ADAPTERS,
    ONE_PIECE,
    full_loss,
    make_adapter_engine,
    train_adapter,
)
from verl.workers.engine import MicroBatchRule, PolicyRows, UpdatePlan, update_adapters
from verl.workers.engine.state import save_engine

RULE = MicroBatchRule(None, 2, packed=True)


def updates_of(rows: dict[str, dict[str, torch.Tensor]]) -> dict[str, PolicyRows]:
    """Two optimizer steps of the solver on all of its rows, and one of the verifier."""
    return {
        name: PolicyRows(replace(full_loss(), ppo_epochs=epochs), rows[name], UpdatePlan(temperature=0.8))
        for name, epochs in (("solver", 2), ("verifier", 1))
    }


def main(folder: Path, model: Path) -> None:
    """Train each adapter on this rank's rows of it; rank 0 writes weights, metrics and the log-probs of its
    rows.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    engine = make_adapter_engine(model, rank=rank, ranks=ranks, start=folder / "start")
    rows = torch.load(folder / f"rows_{rank}.pt", weights_only=True)
    reference = engine.score_all(rows["solver"], 0.8, ONE_PIECE).log_probs
    metrics = {name: train_adapter(engine, name, rows[name]) for name in ADAPTERS}
    weights = {name: {key: value.clone() for key, value in engine.weights(name)} for name in ADAPTERS}
    save_engine(engine, folder / "checkpoint", None)
    found = {"metrics": metrics, "weights": weights, "reference": reference}
    found["together"] = update_adapters(engine, updates_of(rows), RULE)
    found["after"] = {name: {key: value.clone() for key, value in engine.weights(name)} for name in ADAPTERS}
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
