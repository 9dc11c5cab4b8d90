"""Arguments of advantage estimators by name, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos.estimators.outcome import real_rows
from verl.trainer.ppo.core_algos.grouping import group_index

# Fixes for a missing argument.
FIXES = {
    "values": "set critic.enable=true, so that a critic writes them",
    "reward_baselines": "add the column reward_baselines [bsz]: the reward of a greedy reply to the same task",
    "anchor_obs": "add the column anchor [bsz]: the observation of the state before each call",
    "step_rewards": "add the column step_reward [bsz]: the reward right after each call",
    "traj_index": "set algorithm.statistics_over=trajectories and add the column traj_uid [bsz]",
    "turn_index": "add the columns traj_uid, agent_id and turn [bsz]",
    "agent_index": "add the column agent_id [bsz]",
    "policy_index": "add the column policy_id [bsz]",
    "weights": "set algorithm.call_weighting=trajectory",
    "index": "add the column uid [bsz], or set algorithm.group_by",
}


class EstimatorInputs:
    """Arguments of an estimator for the rows of one part of a batch.

    Beside the names below, every tensor or column of the batch is available under its own name.

    Args:
        data: the whole batch.
        rows: indices of the rows of this part; None for all.
        arguments: those common to all rows: `gamma`, `config`, `state`, ...
        index: function that returns the group of each row.
        over_trajectories: provide `traj_index`, so that rows of one trajectory are averaged first.
        weigh_calls: provide `weights`, so that an agent's calls in one episode have a total weight
            of 1.
    """

    def __init__(
        self,
        data: DataProto,
        rows: np.ndarray | None,
        arguments: Mapping[str, Any],
        index: Callable[[EstimatorInputs], np.ndarray],
        over_trajectories: bool = False,
        weigh_calls: bool = False,
    ) -> None:
        self.data = data
        self.rows = rows
        self.arguments = arguments
        self._index = index
        self._over_trajectories = over_trajectories
        self._weigh_calls = weigh_calls

    def get(self, name: str) -> Any:
        """Return the argument of a parameter. Raises KeyError if it is not available."""
        if name in self.arguments:
            return self.arguments[name]
        if name in self._DERIVED:
            return self._DERIVED[name](self)
        return self.tensor(name) if name in self.data.batch.keys() else self.column(name)  # noqa: SIM118

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the batch, `[bsz, ...]`. Raises KeyError if there is none of that
        name.
        """
        value = self.data.batch[name]
        return value if self.rows is None else value[torch.as_tensor(self.rows, device=value.device)]

    def column(self, name: str) -> np.ndarray:
        """Return a column of the batch, `[bsz]`. Raises KeyError if there is none of that name."""
        value = self.data.non_tensor_batch[name]
        return value if self.rows is None else value[self.rows]

    def call_weights(self) -> np.ndarray | None:
        """Return `[bsz]`: 1 / m for a row whose agent has m rows with a token in that episode, 0
        for an empty row; None without weights.
        """
        return self._call_weights if self._weigh_calls else None

    @cached_property
    def _call_weights(self) -> np.ndarray:
        real = real_rows(self.tensor("response_mask")).cpu().numpy()
        return call_weights(self.column("traj_uid"), self.column("agent_id"), real)

    def turn_index(self) -> np.ndarray:
        """Return the index of each row among its agent's calls in that episode, from 0, by turn and
        call: `[bsz]`.

        Candidates of one call have the same index. A row that never had a token has -1; a rejected
        row keeps its index.
        """
        # The mask before rejection, so that a rejected row keeps its place.
        replies = "reply_mask" if "reply_mask" in set(self.data.batch.keys()) else "response_mask"
        rows = np.flatnonzero(real_rows(self.tensor(replies)).cpu().numpy())
        chain = group_index([self.column("traj_uid")[rows], self.column("agent_id")[rows]])
        turn = self.column("turn")[rows].astype(np.int64)
        call = (
            self.column("call")[rows].astype(np.int64)
            if "call" in self.data.non_tensor_batch
            else np.zeros_like(turn)
        )
        order = np.lexsort((call, turn, chain))
        sorted_chain = chain[order]
        sorted_turn = turn[order]
        sorted_call = call[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = sorted_chain[1:] != sorted_chain[:-1]
        differs = begins.copy()
        differs[1:] |= (sorted_turn[1:] != sorted_turn[:-1]) | (sorted_call[1:] != sorted_call[:-1])
        place = np.cumsum(differs) - 1
        first = np.maximum.accumulate(np.where(begins, place, 0))
        out = np.full(len(self.column("turn")), -1, dtype=np.int64)
        out[rows[order]] = place - first
        return out

    def _trajectories(self) -> np.ndarray:
        if not self._over_trajectories:
            raise KeyError("traj_index")
        return self.column("traj_uid")

    def _weights(self) -> np.ndarray:
        if not self._weigh_calls:
            raise KeyError("weights")
        return self._call_weights

    def _baselines(self) -> torch.Tensor:
        if "reward_baselines" in self.data.batch.keys():  # noqa: SIM118
            return self.tensor("reward_baselines")
        rewards = self.tensor("token_level_rewards")
        column = self.column("reward_baselines").astype(np.float32)
        return torch.as_tensor(column, dtype=torch.float32, device=rewards.device)

    def _either(self, name: str, other: str) -> np.ndarray:
        return self.column(name if name in self.data.non_tensor_batch else other)

    _DERIVED: Mapping[str, Callable[[EstimatorInputs], Any]] = {
        "index": lambda self: self._index(self),
        "traj_index": _trajectories,
        "policy_index": lambda self: group_index([self.column("policy_id")]),
        "agent_index": lambda self: self.column("agent_id"),
        "turn_index": turn_index,
        "weights": _weights,
        "anchor_obs": lambda self: self._either("anchor_obs", "anchor"),
        "step_rewards": lambda self: self._either("step_rewards", "step_reward").astype(np.float64),
        "reward_baselines": _baselines,
        "batch": lambda self: (
            self.data.batch if self.rows is None else {k: self.tensor(k) for k in self.data.batch.keys()}  # noqa: SIM118 - a TensorDict
        ),
        "non_tensor_batch": lambda self: {k: self.column(k) for k in self.data.non_tensor_batch},
    }


def call_weights(traj_uid: np.ndarray, agent_id: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return `w = 1 / m` for a row whose agent has m real rows in that episode, 0 for other rows: `[bsz]`;
    all arguments `[bsz]`.

    An agent's calls in one episode have the total weight of one call, in the statistics of its group and in
    the loss. No paper: ours.

    Keys: `algorithm.call_weighting=trajectory`.
    Use when: the number of calls of an agent varies, and long episodes dominate short ones.
    Fails when: long episodes are the most informative: each of their calls then has a small weight.
    """
    chain = group_index([traj_uid, agent_id])
    calls = np.bincount(chain, weights=real)[chain]
    return np.divide(1.0, calls, out=np.zeros(len(real)), where=real)
