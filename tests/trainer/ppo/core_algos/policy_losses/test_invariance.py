"""Every registered loss is a function of the set of rows: their order, padding, cuts and weights mean nothing
else.
"""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.config.model import PolicyLossConfig
from verl.trainer.ppo.core_algos import (
    POLICY_LOSS_REGISTRY,
    MiniBatch,
    Ranks,
    compute_value_loss,
    find_preparation,
)
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES
from verl.workers.engine.policy_update import LossConfig

Rows = dict[str, torch.Tensor]
BUILT_IN = sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("verl."))
CORRECTION = RolloutCorrectionConfig(
    bypass_mode=True, loss_type="reinforce", rollout_is="token", rollout_is_batch_normalize=True,
    rollout_rs="seq_mean_k3", rollout_rs_threshold=0.08, m2po_tau=0.1,
)  # fmt: skip
CONFIG = LossConfig(
    policy_loss=PolicyLossConfig(
        clip_cov_ratio=0.2, clip_cov_lb=0.1, kl_cov_ratio=0.2, ppo_kl_coef=1.0, dro_beta=0.3
    ),
    rollout_correction=CORRECTION,
    loss_agg_mode="seq-mean-token-mean",
)


def make_rows(count: int, width: int, seed: int) -> Rows:
    """Rows with at least one token; old and new log-probs differ by 0.3."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(count, width, generator=generator)
    mask = (torch.rand(count, width, generator=generator) < 0.8).long()
    mask[:, 0] = 1
    return {
        "old_log_prob": old,
        "log_prob": old + 0.3 * torch.randn(count, width, generator=generator),
        "advantages": torch.randn(count, width, generator=generator),
        "response_mask": mask,
        "rollout_is_weights": torch.rand(count, width, generator=generator) + 0.5,
    }


def evaluate(
    name: str, rows: Rows, config: LossConfig = CONFIG
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Loss, gradient of the log-probs, metrics."""
    log_prob = rows["log_prob"].clone().requires_grad_()
    loss, metrics = POLICY_LOSS_REGISTRY[name](
        **{**rows, "log_prob": log_prob}, loss_agg_mode=config.loss_agg_mode, config=config
    )
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.detach(), gradient, metrics


@pytest.mark.parametrize("name", BUILT_IN)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_order_and_padding_change_nothing(name: str, count: int, width: int, seed: int) -> None:
    rows = make_rows(count, width, seed)
    loss, gradient, metrics = evaluate(name, rows)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    padded = {key: torch.nn.functional.pad(value[order], (0, 2, 0, 1)) for key, value in rows.items()}
    padded["advantages"][-1] = 7.0
    padded = {
        key: torch.cat([value[:, :1], torch.full_like(value[:, :1], -1), value[:, 1:]], dim=1)
        for key, value in padded.items()
    }
    padded["response_mask"][:, 1] = 0  # a tool message
    other_loss, other_gradient, other_metrics = evaluate(name, padded)
    assert torch.allclose(other_loss, loss, atol=1e-6)
    assert torch.allclose(other_gradient[:-1, [0, *range(2, width + 1)]], gradient[order], atol=1e-6)
    assert not other_gradient[-1].any() and not other_gradient[:, [1, *range(width + 1, width + 3)]].any()
    assert metrics == pytest.approx(other_metrics, abs=1e-5)


def counts_of(mask: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    """What the engine tells `agg_loss` of a mini-batch."""
    tokens = mask.sum(dim=-1)
    return {
        "batch_num_tokens": float((tokens * weights).sum()),
        "global_batch_size": float((weights * (tokens > 0)).sum()),
        "loss_scale_factor": mask.shape[1],
    }


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Sizes of micro-batches, in rows; some have none."""
    return draw(st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0))


@pytest.mark.parametrize("name", BUILT_IN)
@given(cuts(), st.integers(1, 5), st.sampled_from(LOSS_AGG_MODES), st.booleans(), st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_any_cut_into_micro_batches_gives_the_same_loss_and_gradient(
    name: str, sizes: list[int], width: int, mode: str, weighted: bool, seed: int
) -> None:
    """As the engine does it: columns prepared for the whole mini-batch travel with their rows, and counts are
    of the whole.
    """
    rows = {
        key: value.double() if value.is_floating_point() else value
        for key, value in make_rows(sum(sizes), width, seed).items()
    }
    weights = torch.randint(1, 4, (sum(sizes),), generator=torch.Generator().manual_seed(seed)).double() / 2
    weights = weights if weighted else torch.ones_like(weights)
    config = dataclasses.replace(CONFIG, loss_agg_mode=mode)
    prepare = find_preparation(name, config)
    mini = MiniBatch(
        *(rows[key] for key in ("old_log_prob", "log_prob", "advantages", "response_mask")), weights, Ranks()
    )
    columns = {} if prepare is None else prepare(mini, config)
    rows |= {"response_mask": columns.pop("response_mask", rows["response_mask"])}
    counts = counts_of(rows["response_mask"], weights)

    def part(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and gradient of these rows."""
        given_counts = counts | {"row_weights": weights[start:stop]}
        own = {key: value[start:stop] for key, value in columns.items()}
        of_part = dataclasses.replace(config, global_batch_info=given_counts, prepared=own)
        return evaluate(name, {key: value[start:stop] for key, value in rows.items()}, of_part)[:2]

    loss, gradient = part(0, sum(sizes))
    parts = [part(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    assert torch.allclose(torch.stack([p[0] for p in parts]).sum(), loss, rtol=1e-9, atol=1e-12)
    assert torch.allclose(torch.cat([p[1] for p in parts]), gradient, rtol=1e-9, atol=1e-12)
    own_counts = dataclasses.replace(config, global_batch_info={"row_weights": weights}, prepared=columns)
    assert torch.allclose(evaluate(name, rows, own_counts)[0], loss), (
        "the counts of the whole are those that it finds itself"
    )


@given(cuts(), st.integers(1, 5), st.sampled_from(LOSS_AGG_MODES), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_any_cut_gives_the_same_value_loss_and_gradient(
    sizes: list[int], width: int, mode: str, seed: int
) -> None:
    rows = make_rows(sum(sizes), width, seed)
    columns = [rows[key].double() for key in ("advantages", "rollout_is_weights", "old_log_prob")]
    counts = counts_of(rows["response_mask"], torch.ones(sum(sizes)))

    def part(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and gradient of these rows."""
        values = columns[0][start:stop].clone().requires_grad_()
        others = (column[start:stop] for column in (*columns[1:], rows["response_mask"]))
        loss, _ = compute_value_loss(values, *others, 0.5, mode, **counts)
        return loss.detach(), torch.autograd.grad(loss, values)[0]

    loss, gradient = part(0, sum(sizes))
    parts = [part(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    assert torch.allclose(torch.stack([p[0] for p in parts]).sum(), loss, rtol=1e-9, atol=1e-12)
    assert torch.allclose(torch.cat([p[1] for p in parts]), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_row_of_weight_k_counts_like_k_rows(name: str) -> None:
    """Also for the statistics over the mini-batch that some losses take; rejection by M2PO is of tokens and
    stays out of it.
    """
    rows = make_rows(4, 5, seed=3)
    config = dataclasses.replace(CONFIG, rollout_correction=dataclasses.replace(CORRECTION, m2po_tau=None))
    repeats = torch.tensor([1, 3, 0, 2])
    loss, gradient, _ = evaluate(
        name, {key: value.repeat_interleave(repeats, dim=0) for key, value in rows.items()}, config
    )
    weighted = dataclasses.replace(config, global_batch_info={"row_weights": repeats.float()})
    weighted_loss, weighted_gradient, _ = evaluate(name, rows, weighted)
    assert torch.allclose(weighted_loss, loss, atol=1e-6)
    of_copies = torch.stack([part.sum(dim=0) for part in gradient.split(repeats.tolist())])
    assert torch.allclose(weighted_gradient, of_copies, atol=1e-6)


class ThreadRanks(Ranks):
    """One of two ranks that run in threads of this process."""

    def __init__(self, rank: int, board: list[torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.gather(values)).sum(dim=0)

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        self._board[self.rank] = values
        self._barrier.wait(timeout=20)
        parts = list(self._board)
        self._barrier.wait(timeout=20)
        return parts


def on_two_ranks(name: str, parts: list[Rows]) -> list[dict[str, torch.Tensor]]:
    """What each rank prepares."""
    board, barrier = [torch.empty(0)] * 2, threading.Barrier(2)
    prepare = find_preparation(name, CONFIG)
    assert prepare is not None
    minis = [mini_batch(rows, ThreadRanks(rank, board, barrier)) for rank, rows in enumerate(parts)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda mini: prepare(mini, CONFIG), minis))


def mini_batch(rows: Rows, ranks: Ranks) -> MiniBatch:
    tensors = [rows[key] for key in ("old_log_prob", "log_prob", "advantages", "response_mask")]
    return MiniBatch(*tensors, torch.ones(len(tensors[0])), ranks)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "bypass_mode"])
@pytest.mark.parametrize("first", [0, 2, 7])
def test_two_ranks_prepare_what_one_does(name: str, first: int) -> None:
    rows = make_rows(8, 5, seed=1)
    parts = [
        {key: value[:first] for key, value in rows.items()},
        {key: value[first:] for key, value in rows.items()},
    ]
    prepare = find_preparation(name, CONFIG)
    assert prepare is not None
    whole = prepare(mini_batch(rows, Ranks()), CONFIG)
    cut = on_two_ranks(name, parts)
    for column, value in whole.items():
        assert value.any(), "a preparation that chooses nothing proves nothing"
        assert torch.allclose(torch.cat([part[column] for part in cut]), value)
