"""One rank of the two-rank test: `rank_main.py FOLDER MODEL MODES`, with rank and address in the
environment.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.workers.engine.builders import (
    gradients,
    make_engine,
    make_value_engine,
    settings_of,
    value_gradients,
)
from verl.workers.engine import MicroBatchRule
from verl.workers.engine.state import save_engine


def main(folder: Path, model: Path, modes: list[str]) -> None:
    """Update on this rank's half of the rows, from the same weights in every mode; rank 0 writes gradients,
    metrics and weights.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rows = torch.load(folder / "rows.pt", weights_only=True)
    half = len(rows["input_ids"]) // ranks
    mine = {name: value[rank * half : (rank + 1) * half] for name, value in rows.items()}
    for mode in modes:
        rule = MicroBatchRule(token_budget=None, rows=2, packed=True)
        if mode == "values":
            engine = make_value_engine(folder / f"value_model_{rank}", rank=rank, ranks=ranks)
            found, metrics = value_gradients(engine, mine, rule)
        else:
            engine = make_engine(model, rank=rank, ranks=ranks, share_prefixes=mode != "single")
            found, metrics = gradients(engine, mine, rule, *settings_of(mode))
        if rank == 0:
            torch.save({"gradients": found, "metrics": metrics}, folder / f"{mode}.pt")
    weights = {name: value.clone() for name, value in engine.weights()}
    if rank == 0:
        torch.save(weights, folder / "weights.pt")
    save_engine(engine, folder / "checkpoint", None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","))
