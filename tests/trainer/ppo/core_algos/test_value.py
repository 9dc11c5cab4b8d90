"""The clipped value loss by hand, and its independence of how a mini-batch is cut."""

import pytest
import torch

from verl.trainer.ppo.core_algos import compute_value_loss


def test_value_loss_by_hand() -> None:
    """Clip range 0.5.

    token 1: V 2, V_old 0, R 3: error 1, clipped V 0.5, error 6.25 -> 6.25, clipped
    token 2: V 1, V_old 1, R 0: error 1, not clipped -> 1
    token 3: masked
    loss = 0.5 * (6.25 + 1) / 2 = 1.8125
    """
    vpreds = torch.tensor([[2.0, 1.0, 9.0]], requires_grad=True)
    loss, clip_share = compute_value_loss(
        vpreds,
        torch.tensor([[3.0, 0.0, 7.0]]),
        torch.tensor([[0.0, 1.0, 0.0]]),
        torch.tensor([[1, 1, 0]]),
        0.5,
    )
    assert loss.item() == pytest.approx(1.8125)
    assert clip_share.item() == 0.5
    (gradient,) = torch.autograd.grad(loss, vpreds)
    assert gradient.tolist() == [[0.0, 0.5, 0.0]], (
        "a clipped value has no gradient; the other 0.5 * 2 * (1 - 0) / 2"
    )


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_add_up(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    vpreds, returns, values = (torch.randn(5, 4, generator=generator) for _ in range(3))
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    whole, _ = compute_value_loss(vpreds, returns, values, mask, 0.2, mode)
    counts = {"batch_num_tokens": 10, "global_batch_size": 4}
    parts = [slice(0, 1), slice(1, 3), slice(3, 5)]
    cut = sum(
        compute_value_loss(vpreds[p], returns[p], values[p], mask[p], 0.2, mode, **counts)[0] for p in parts
    )
    assert cut.item() == pytest.approx(whole.item(), abs=1e-6)


@pytest.mark.parametrize("wrong", ["vpreds", "returns", "values"])
def test_tensors_of_another_shape_are_named(wrong: str) -> None:
    tensors = {key: torch.zeros(3, 4) for key in ("vpreds", "returns", "values")}
    with pytest.raises(ValueError, match=f"{wrong} .*differ in shape"):
        compute_value_loss(
            **tensors | {wrong: torch.zeros(3, 1)}, response_mask=torch.ones(3, 4), cliprange_value=0.5
        )
