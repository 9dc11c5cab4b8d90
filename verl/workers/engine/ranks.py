"""Collective operations over the ranks of a worker group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from verl.trainer.ppo.core_algos.policy_losses.preparation import Ranks


class GroupRanks(Ranks):
    """The ranks of a process group; every method must be called on all of them.

    Args:
        group: of one rank or more.
        device: of the group's tensors.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over the ranks, on every rank."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """Return the elementwise maximum of `values` over the ranks, on every rank."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the one-dimensional `values` of every rank, in the order of the ranks; lengths may
        differ.
        """
        if self.size == 1:
            return [values]
        lengths = torch.zeros(self.size, dtype=torch.long, device=self._device)
        lengths[self.rank] = len(values)
        counts = self.sum(lengths).tolist()
        padded = torch.zeros(max(counts), dtype=values.dtype, device=self._device)
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self._group)
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def union(self, names: list[str]) -> list[str]:
        """Return the union of the names of all ranks, sorted."""
        if self.size == 1:
            return sorted(names)
        everyone: list[list[str]] = [[] for _ in range(self.size)]
        dist.all_gather_object(everyone, names, group=self._group)
        return sorted({name for rank_names in everyone for name in rank_names})

    def _reduced(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.size == 1:
            return values
        # `all_reduce` changes its argument.
        result = values.to(self._device, copy=True)
        dist.all_reduce(result, operation, group=self._group)
        return result
