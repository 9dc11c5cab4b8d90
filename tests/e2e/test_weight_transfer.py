"""A way of sending weights is one file with one class, named in one key; training with it changes no bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, weights

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


def weights_of(train: Run, run_dir: Path, changes: dict[str, Any]) -> dict[str, bytes]:
    """The Hugging Face copies after two steps, in which the weights were sent twice."""
    train(changes | {"trainer.default_local_dir": run_dir, "trainer.save_freq": 2})
    return weights(run_dir, 2)


def test_a_transfer_of_ones_own_trains_to_the_same_weights(train: Run, tmp_path: Path, own: str) -> None:
    expected = weights_of(train, tmp_path / "default", {})
    for name in (own, "shared_memory"):
        assert weights_of(train, tmp_path / name, {"actor_rollout_ref.rollout.weight_transfer": name}) == expected


@pytest.mark.ray
def test_a_transfer_of_ones_own_reaches_engines_in_other_processes(train: Run, tmp_path: Path, own: str) -> None:
    expected = weights_of(train, tmp_path / "default", {})
    changes = {"actor_rollout_ref.rollout.weight_transfer": own, "trainer.controller": "ray", "ray_init.num_cpus": 2}
    assert weights_of(train, tmp_path / "ray", changes) == expected


def test_a_transfer_that_is_not_there_is_one_error_before_anything_starts(refused: Any) -> None:
    line = refused({"actor_rollout_ref.rollout.weight_transfer": "carrier_pigeon"})
    assert "weight_transfer=carrier_pigeon" in line and "shared_memory" in line
