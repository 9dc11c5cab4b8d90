import math

import pytest
import torch

from verl.workers.engine import head_scores as module
from verl.workers.engine.head_scores import ScoreRequest
from verl.workers.engine.head_scores import token_scores as scores_of


def token_scores(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = scores_of(logits, ScoreRequest(labels, temperature))
    return scores.log_probs, scores.entropy


def sums_of_squares(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    labels = torch.zeros(len(logits), dtype=torch.long)
    squares = scores_of(logits, ScoreRequest(labels, temperature, squares=True)).squares
    assert squares is not None
    return squares


def reference(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    dist = torch.distributions.Categorical(logits=logits.float() / temperature)
    return dist.log_prob(labels), dist.entropy()


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)])
def test_values_and_gradients_are_those_of_softmax(
    monkeypatch: pytest.MonkeyPatch, chunk: int, weights: tuple[float, float]
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunk)
    torch.manual_seed(0)
    labels, out = torch.randint(0, 5, (6,)), []
    values = torch.randn(6, 5)
    for score in (token_scores, reference):
        logits = values.clone().requires_grad_()
        log_probs, entropy = score(logits, labels, 0.7)
        terms = [w * x.square().sum() for w, x in zip(weights, (log_probs, entropy), strict=True) if w]
        sum(terms).backward()
        out.append((log_probs, entropy, logits.grad))
    for ours, theirs in zip(*out, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_bf16_logits_are_scored_in_fp32() -> None:
    logits = torch.randn(4, 9, dtype=torch.bfloat16, requires_grad=True)
    log_probs, _ = token_scores(logits, torch.tensor([1, 2, 3, 4]), 1.0)
    log_probs.sum().backward()
    assert (
        log_probs.dtype == torch.float32 and logits.grad is not None and logits.grad.dtype == torch.bfloat16
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_of_probability_zero_leave_entropy_and_gradients_finite(temperature: float) -> None:
    finite = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    out = []
    for given in (finite, torch.cat([finite, torch.full((2, 1), -torch.inf)], dim=1)):
        logits, before = given.clone().requires_grad_(), given.clone()
        log_probs, entropy = token_scores(logits, torch.tensor([1, 0]), temperature)
        (log_probs.sum() + 1e6 * entropy.sum()).backward()
        assert torch.equal(logits, before), "logits are read only"
        out.append((log_probs, entropy, logits.grad[:, :2], logits.grad[:, 2:]))
    assert out[0][1][0].item() == pytest.approx(0.582203 if temperature == 1.0 else 0.365334, abs=1e-6)
    for ours, plain in zip(out[1][:3], out[0], strict=False):
        torch.testing.assert_close(ours, plain)
    assert (out[1][3] == 0).all()


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature=0"):
        token_scores(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), 0.0)


def test_sums_of_squared_probabilities_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # probabilities 1/4 and 3/4: 1/16 + 9/16; at temperature 2 the odds 3 become sqrt(3)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 2)
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]], requires_grad=True)
    assert sums_of_squares(logits, 1.0).tolist() == pytest.approx([10 / 16, 1 / 2])
    odds = 3**0.5
    assert sums_of_squares(logits, 2.0)[0].item() == pytest.approx((1 + odds**2) / (1 + odds) ** 2)
    assert not sums_of_squares(logits, 1.0).requires_grad
