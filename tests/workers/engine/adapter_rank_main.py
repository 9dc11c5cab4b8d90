"""One rank of the two-rank test of adapters: `adapter_rank_main.py FOLDER MODEL`, with rank and address in
the environment.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.workers.engine.builders import ADAPTERS, ONE_PIECE, make_adapter_engine, train_adapter
from verl.workers.engine.state import save_engine


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
    if rank == 0:
        torch.save({"metrics": metrics, "weights": weights, "reference": reference}, folder / "found.pt")
    save_engine(engine, folder / "checkpoint", None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
