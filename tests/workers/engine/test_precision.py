"""Computing in bf16 rounds neither weights nor updates; offloaded state is on the device while it is used,
and off it afterwards.
"""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import gradients, make_engine, make_rows
from verl.trainer.config import FSDPConfig
from verl.workers.engine import fsdp_engine, offload


def test_a_whole_model_that_computes_in_bf16_keeps_fp32_weights_and_learns_the_same(
    tiny_model_dir: Path,
) -> None:
    rows, lr = make_rows(9), 1e-6
    exact, engine = (
        make_engine(tiny_model_dir, lr=lr),
        make_engine(tiny_model_dir, lr=lr, fsdp=FSDPConfig(dtype="bf16")),
    )
    before = {name: p.full_tensor().clone() for name, p in engine.model.named_parameters()}
    expected, _ = gradients(exact, rows)
    found, _ = gradients(engine, rows)
    flat, reference = (torch.cat([g.flatten() for g in grads.values()]) for grads in (found, expected))
    assert {g.dtype for g in found.values()} == {torch.float32}
    assert 0 < (flat - reference).norm() < 0.05 * reference.norm()
    for name, p in engine.model.named_parameters():
        after = p.full_tensor()
        moved = (after - before[name]).abs()[found[name].abs() > 1e-4]
        assert after.dtype == torch.float32
        assert (moved > 0.5 * lr).all(), (
            f"{name}: a step as small as {lr} is lost when weights are rounded to bf16"
        )


def test_offloaded_state_is_on_the_device_inside_the_block_and_back_after_it_or_an_error(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tiny_model_dir, fsdp=FSDPConfig(param_offload=True, optimizer_offload=True))
    moves: list[tuple[str, str]] = []
    monkeypatch.setattr(
        fsdp_engine, "move_optimizer_state", lambda _, device: moves.append(("optimizer", device))
    )
    monkeypatch.setattr(offload, "move_parameters", lambda _, device: moves.append(("parameters", device)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(engine, "device", torch.device("cuda"))
    inside, after = (
        [("parameters", "cuda"), ("optimizer", "cuda")],
        [("optimizer", "cpu"), ("parameters", "cpu")],
    )
    with engine.training():
        assert moves == inside
    assert moves == inside + after
    with pytest.raises(RuntimeError, match="in the update"), engine.training():
        raise RuntimeError("in the update")
    assert moves == 2 * (inside + after)


def test_the_state_of_an_optimizer_moves_as_a_whole(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    gradients(engine, make_rows(3))
    optimizer = engine.trainable.optimizer
    offload.move_optimizer_state(optimizer, "meta")
    tensors = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert tensors
    assert {tensor.device.type for tensor in tensors} == {"meta"}
