"""Inverse-CDF sampling: distribution, truncation, greedy rows, rows that are not numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from verl.protocol.generate import RolloutError, SamplingParams
from verl.workers.rollout.sampling import check_sampling, draw_uniforms, sample

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])


def draw(
    rows: int = 4000, top_p: float = 1.0, top_k: int = 5, temperature: float = 1.0, truncated: bool = True
) -> torch.Tensor:
    """Share of each token when `rows` rows sample from the same logits with evenly spread uniforms."""
    truncation = (
        torch.full((rows,), truncated),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), top_k),
    )
    uniforms = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    out = sample(LOGITS.repeat(rows, 1), uniforms, torch.full((rows,), temperature), None, truncation)
    expected = (LOGITS / temperature).log_softmax(-1)[out.tokens]
    torch.testing.assert_close(out.log_probs, expected)
    return torch.bincount(out.tokens, minlength=5) / rows


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_of_logits_over_temperature(temperature):
    torch.testing.assert_close(
        draw(temperature=temperature), (LOGITS / temperature).softmax(-1), atol=1e-3, rtol=0
    )


def test_top_k_keeps_k_tokens_in_proportion_and_log_probs_untruncated():
    torch.testing.assert_close(draw(top_k=2)[:2], LOGITS[:2].softmax(-1), atol=1e-3, rtol=0)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    probs = LOGITS.softmax(-1)  # 0.636, 0.234, ...
    shares = draw(top_p=0.7)
    torch.testing.assert_close(shares[:2], probs[:2] / probs[:2].sum(), atol=1e-3, rtol=0)
    assert shares[2:].sum() == 0
    assert draw(top_p=0.1)[0] == 1


def test_rows_that_do_not_truncate_are_untouched_by_rows_that_do():
    torch.testing.assert_close(draw(top_p=0.1, top_k=1, truncated=False), draw(), atol=0, rtol=0)


def test_rows_without_a_distribution_are_marked_and_leave_others_alone():
    logits = torch.stack([LOGITS, LOGITS * float("nan"), torch.full((5,), float("inf")), LOGITS])
    out = sample(logits, torch.full((4,), 0.5, dtype=torch.float64), torch.ones(4))
    assert out.finite.tolist() == [True, False, False, True]
    assert int(out.tokens.max()) < 5


def test_uniforms_depend_on_seed_and_reply_and_a_longer_draw_begins_the_same():
    assert np.array_equal(draw_uniforms(3, 1, 10), draw_uniforms(3, 1, 50)[:10])
    streams = {draw_uniforms(seed, reply, 4).tobytes() for seed in (0, 1, -1, 2**63) for reply in (0, 1)}
    assert len(streams) == 8


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": 0}],
)
def test_a_value_out_of_range_is_named(wrong):
    with pytest.raises(RolloutError, match=next(iter(wrong))):
        check_sampling(SamplingParams(**{"max_tokens": 1, **wrong}))
