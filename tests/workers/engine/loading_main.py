"""One rank of the loading test: `loading_main.py FOLDER`, with rank and address in the environment."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from verl.models.loader import ModelPathError
from verl.workers.engine.loading import load_sharded
from verl.workers.engine.sharding import full_tensors, init_mesh, shard_model


class Net(torch.nn.Module):
    """Parameters and buffers of several dtypes, all equal to `value`."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 5)
        self.register_buffer("bias_of_experts", torch.full((2, 3), value).t())
        self.register_buffer("seen", torch.tensor(value > 0))
        self.register_buffer("scale", torch.full((), value, dtype=torch.bfloat16))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)


def broken(error: Exception) -> Callable[[], Net]:
    def make() -> Net:
        raise error

    return make


def main(folder: Path) -> None:
    """Write what this rank has after loading, and what it raised when one rank could not load."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_mesh("cpu", rank, ranks)

    def shard(network: Net) -> Net:
        return shard_model(network, mesh, torch.float32, True)

    network = load_sharded(lambda: Net(1.0), lambda: Net(0.0), shard, mesh)
    tensors = dict(full_tensors(network.named_parameters())) | dict(network.named_buffers())
    raised = []
    for load, build in (
        (broken(ModelPathError("no weights")), lambda: Net(0.0)),
        (broken(KeyError("odd type")), lambda: Net(0.0)),
        (lambda: Net(1.0), broken(ValueError("not here"))),
    ):
        try:
            load_sharded(load, build, shard, mesh)
        except (ModelPathError, KeyError, ValueError) as error:
            raised.append(f"{type(error).__name__}: {error}")
    torch.save({"tensors": tensors, "raised": raised}, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
