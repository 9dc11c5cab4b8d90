"""Two ranks have one model, whatever the first rank read, and one answer when it cannot be read."""

import os
import subprocess
from pathlib import Path

import torch

from verl.single_controller.worker import find_free_port

ROOT = Path(__file__).parents[3]


def test_every_rank_gets_parameters_and_buffers_and_raises_any_error(
    tmp_path: Path, forked_python: str
) -> None:
    base = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
        "PYTHONPATH": str(ROOT),
    }
    command = [forked_python, "-m", "tests.workers.engine.loading_main", str(tmp_path)]
    ranks = [subprocess.Popen(command, env=base | {"RANK": str(rank)}, cwd=ROOT) for rank in range(2)]
    try:
        assert [process.wait(timeout=100) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    first, second = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    for found in (first, second):
        assert set(found["tensors"]) == {"inner.weight", "inner.bias", "bias_of_experts", "seen", "scale"}
        assert all(bool((value == 1).all()) for value in found["tensors"].values())
    assert first["raised"] == [
        "ModelPathError: no weights",
        "KeyError: 'odd type'",
        "ModelPathError: rank 1: ValueError: not here",
    ]
    assert second["raised"] == [
        "ModelPathError: no weights",
        "ModelPathError: rank 0: KeyError: 'odd type'",
        "ValueError: not here",
    ]
