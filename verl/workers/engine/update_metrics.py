"""Metrics of an update, reduced from micro-batches to one value over all mini-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verl.workers.engine.ranks import GroupRanks

EXTREMES = {"max": max, "min": min}


def _extreme(name: str) -> str | None:
    """Return `max` or `min` if that is a word of the last part of a metric's name, else None."""
    return next((word for word in name.rsplit("/", 1)[-1].split("_") if word in EXTREMES), None)


def fold(into: dict[str, float], values: Mapping[str, Any], weight: float) -> None:
    """Add `values` times `weight`; for a maximum or minimum (`..._max`, `..._min`) keep the largest
    or smallest.
    """
    for name, value in values.items():
        word = _extreme(name)
        if word is None:
            into[name] = into.get(name, 0.0) + float(value) * weight
        else:
            into[name] = EXTREMES[word](into.get(name, float(value)), float(value))


class UpdateMetrics:
    """Collects the metrics of mini-batches.

    Args:
        ranks: that share the mini-batches.
        counted: name of the metric that is summed over mini-batches; others are averaged, or the
            extreme for maxima and minima.

    Attributes:
        count: number of mini-batches with metrics.
    """

    def __init__(self, ranks: GroupRanks, counted: str) -> None:
        self._ranks = ranks
        self._counted = counted
        self._values = dict[str, float]()
        self.count = 0

    def add(self, mini_batch: Mapping[str, float]) -> None:
        """Add this rank's metrics of one mini-batch; their mean over ranks is the value."""
        self.count += bool(mini_batch)
        fold(self._values, mini_batch, 1.0)

    def result(self, tokens: int) -> dict[str, float]:
        """Return the metrics, the same on every rank, with `perf/tokens` summed over ranks."""
        names = self._ranks.union(list(self._values))
        means = [name for name in names if _extreme(name) is None]
        rank_values = torch.tensor(
            [*(self._values.get(name, 0.0) for name in means), float(tokens)], dtype=torch.double
        )
        *sums, all_tokens = self._ranks.sum(rank_values).tolist()
        metrics = {}
        for name, value in zip(means, sums, strict=True):
            metrics[name] = value / self._ranks.size / (1 if name == self._counted else max(1, self.count))
        metrics |= self._extremes([name for name in names if _extreme(name) is not None])
        return metrics | {"perf/tokens": all_tokens}

    def _extremes(self, names: list[str]) -> dict[str, float]:
        """Return maxima and minima over the ranks; minima are reduced as maxima with the opposite
        sign.
        """
        signs = [1.0 if _extreme(name) == "max" else -1.0 for name in names]
        signed_values = [
            sign * self._values[name] if name in self._values else -torch.inf
            for name, sign in zip(names, signs, strict=True)
        ]
        largest = self._ranks.max(torch.tensor(signed_values, dtype=torch.double)).tolist()
        return {name: sign * value for name, sign, value in zip(names, signs, largest, strict=True)}


class AgentMeans:
    """Means over the tokens of each agent that shares a policy, over all steps of an update.

    Args:
        agents: slugs; `agent_index` of a row is an index into them.
        names: of the metrics.
    """

    def __init__(self, agents: Sequence[str], names: Sequence[str]) -> None:
        self._agents = agents
        self._names = names
        self._sums = torch.zeros(len(agents), 1 + len(names), dtype=torch.double)

    @torch.no_grad()
    def add(self, agent_index: torch.Tensor, mask: torch.Tensor, *values: torch.Tensor) -> None:
        """Add the unmasked tokens of some rows: `agent_index` `[bsz]`; `mask` and one tensor per
        name, `[bsz, response_len]`.
        """
        real = mask.bool()
        rows = [
            torch.where(real, value, 0.0).sum(dim=1, dtype=torch.double) for value in (real.double(), *values)
        ]
        self._sums.index_add_(0, agent_index.cpu(), torch.stack(rows, dim=1).cpu())

    def metrics(self, ranks: GroupRanks) -> dict[str, float]:
        """Return `agent/<slug>/<name>` of the agents that have a token on any rank, the same on
        every rank.
        """
        metrics = {}
        for agent, (tokens, *sums) in zip(self._agents, ranks.sum(self._sums).tolist(), strict=True):
            metrics |= {
                f"agent/{agent}/{name}": value / tokens
                for name, value in zip(self._names, sums, strict=True)
                if tokens
            }
        return metrics
