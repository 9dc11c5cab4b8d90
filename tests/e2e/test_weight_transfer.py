"""A way of sending weights is one file with one class, named in one key; training with it changes no bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import ADAPTER

OWN = '''
import io
import torch
from torch.distributed import TCPStore
from verl.workers.weight_transfer.base import WeightTransfer


class Post(WeightTransfer):
    """Buckets wait at the sender, behind a socket, for whoever has their number."""

    def __init__(self):
        self.store, self.sent, self.senders = None, 0, {}

    def send(self, tensors, receivers):
        if self.store is None:
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.sent += 1
        packed = io.BytesIO()
        torch.save(dict(tensors), packed)
        self.store.set(f"bucket {self.sent}", packed.getvalue())
        return self.store.port, self.sent

    def receive(self, handle):
        port, number = handle
        if port not in self.senders:
            self.senders[port] = TCPStore("127.0.0.1", port, is_master=False)
        return torch.load(io.BytesIO(self.senders[port].get(f"bucket {number}")))

    def release(self, handle):
        assert self.store.delete_key(f"bucket {handle[1]}")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a transfer that is no part of this package."""
    (tmp_path / "own_post.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_post.Post"


DIES = """
import os
from pathlib import Path
from verl.workers.weight_transfer.collective import Collective


class Dies(Collective):
    def receive(self, handle):
        received = super().receive(handle)
        if handle["update"] == 2:
            try:
                Path(__file__).with_suffix(".died").touch(exist_ok=False)
            except FileExistsError:
                return received
            os._exit(9)
        return received
"""

# The weights are sent twice before the last are saved.
LAST = {"trainer.save_freq": 2}
ADAPTERS = LAST | {"agent.specialization": "lora"} | ADAPTER


def adapters(run_dir: Path) -> dict[str, bytes]:
    """The adapters of the last checkpoint, by path."""
    folder = run_dir / "checkpoints" / "global_step_2" / "actor"
    found = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("adapter_model.safetensors")
    }
    assert len(found) == 2
    return found


def test_a_transfer_of_ones_own_trains_to_the_same_weights(
    train: Run, once: Callable[..., Path], tmp_path: Path, own: str
) -> None:
    for name in (own, "shared_memory", "collective", "cuda_ipc", "auto"):
        train(
            LAST
            | {
                "actor_rollout_ref.rollout.weight_transfer": name,
                "trainer.default_local_dir": tmp_path / name,
            }
        )
        assert weights(tmp_path / name, 2) == weights(once(LAST), 2)


@pytest.mark.ray
@pytest.mark.parametrize("name", ["own", "collective", "cuda_ipc"])
def test_a_transfer_reaches_engines_in_other_processes(
    train: Run, once: Callable[..., Path], tmp_path: Path, own: str, name: str
) -> None:
    changes = {
        "actor_rollout_ref.rollout.weight_transfer": own if name == "own" else name,
        "trainer.controller": "ray",
        "ray_init.num_cpus": 2,
    }
    train(LAST | changes)
    assert weights(tmp_path / "run", 2) == weights(once(LAST), 2)


@pytest.mark.parametrize("way", ["collective", "cuda_ipc"])
def test_an_adapter_for_each_agent_trains_to_the_same_weights(
    train: Run, once: Callable[..., Path], tmp_path: Path, way: str
) -> None:
    train(ADAPTERS | {"actor_rollout_ref.rollout.weight_transfer": way})
    assert adapters(tmp_path / "run") == adapters(once(ADAPTERS))


@pytest.mark.ray
@pytest.mark.parametrize("base", [LAST, ADAPTERS], ids=["model", "adapters"])
def test_an_engine_that_dies_in_a_broadcast_is_replaced_and_joins_again(
    train: Run,
    once: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: dict[str, Any],
) -> None:
    """It dies in the second update: that after a step, or, of the first weights, in the one of the second
    adapter.
    """
    (tmp_path / "own_collective.py").write_text(DIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {
        "actor_rollout_ref.rollout.weight_transfer": "own_collective.Dies",
        "trainer.controller": "ray",
        "ray_init.num_cpus": 2,
    }
    train(base | changes)
    assert (tmp_path / "own_collective.died").exists()
    assert [
        line["training/engine_restarts"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line
    ] == [1, 1]
    if base is ADAPTERS:
        assert adapters(tmp_path / "run") == adapters(once(base))
    else:
        assert weights(tmp_path / "run", 2) == weights(once(base), 2)


def test_a_transfer_that_is_not_there_is_one_error_before_anything_starts(refused: Any) -> None:
    line = refused({"actor_rollout_ref.rollout.weight_transfer": "carrier_pigeon"})
    assert "weight_transfer=carrier_pigeon" in line and "shared_memory" in line


def test_gpu_memory_that_cannot_be_shared_is_one_error_before_anything_starts(
    refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    line = refused({"actor_rollout_ref.rollout.weight_transfer": "cuda_ipc", "trainer.device": "cuda"})
    assert "unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in line


def test_memory_of_a_gpu_that_engines_do_not_share_is_one_error_before_anything_starts(refused: Any) -> None:
    apart = {
        "actor_rollout_ref.rollout.weight_transfer": "cuda_ipc",
        "rollout.n_gpus_per_node": 2,
        "trainer.controller": "ray",
    }
    line = refused(apart | {"trainer.device": "cuda"})
    assert (
        "rollout.weight_transfer=cuda_ipc sends weights within one GPU, but rollout.n_gpus_per_node=2" in line
    )
