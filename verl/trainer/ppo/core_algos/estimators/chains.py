"""Chains: the calls of an agent in one episode, in order, with successors and discounted sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from verl.trainer.ppo.core_algos.estimators.outcome import real_rows
from verl.trainer.ppo.core_algos.grouping import group_index, group_stats


@dataclass(frozen=True)
class Chains:
    """Rows in the order of their chain.

    A *place* is one turn of one agent in one episode. Rows of one place are candidates of the same
    call: all of them are followed by the same next place, whose rows are averaged.
    """

    place: np.ndarray
    """`[bsz]` place of each row; -1 for a row in no chain."""
    following: np.ndarray
    """`[n_places]` next place, -1 at the end of a chain."""
    backwards: list[np.ndarray]
    """Rows of the last place of every chain, of the second to last, and so on."""


def chain_rows(
    traj_index: np.ndarray,
    turn_index: np.ndarray,
    agent_index: np.ndarray | None,
    response_mask: torch.Tensor,
    reply_mask: torch.Tensor | None = None,
) -> np.ndarray:
    """Return whether rows are in chains, `[bsz]` bool: those with an unmasked token, and rejected
    ones if all candidates of the call are.

    A completely rejected call is not trained on, but its reward is part of the returns of the calls
    before it.

    Args:
        traj_index, turn_index, agent_index: as for `build_chains`.
        response_mask: `[bsz, response_len]`, after rejection.
        reply_mask: `[bsz, response_len]`, before rejection; None: nothing was rejected.
    """
    valid = real_rows(response_mask).cpu().numpy()
    if reply_mask is None:
        return valid
    replied = real_rows(reply_mask).cpu().numpy()
    call = group_index(
        [traj_index, turn_index] if agent_index is None else [traj_index, turn_index, agent_index]
    )
    left = np.bincount(call, weights=valid)[call] > 0
    return valid | (replied & ~left)


def build_chains(
    traj_index: np.ndarray, turn_index: np.ndarray, agent_index: np.ndarray | None, valid: np.ndarray
) -> Chains:
    """Order the valid rows by turn within (trajectory, agent).

    Args:
        traj_index: `[bsz]` episode.
        turn_index: `[bsz]` numbers that increase along the episode; equal numbers are candidates of
            one call.
        agent_index: `[bsz]` agent; None: one agent.
        valid: `[bsz]` rows to include.
    """
    rows = np.flatnonzero(valid)
    chain = group_index([traj_index] if agent_index is None else [traj_index, agent_index])[rows]
    turn = np.asarray(turn_index, dtype=np.float64)[rows]
    order = np.lexsort((turn, chain))
    rows = rows[order]
    chain = chain[order]
    turn = turn[order]
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = (chain[1:] != chain[:-1]) | (turn[1:] != turn[:-1])
    sorted_place = np.cumsum(starts) - 1
    chain_of_place = chain[starts]
    n_places = len(chain_of_place)
    end_of_chain = np.searchsorted(chain_of_place, chain_of_place, side="right") - 1
    from_end = end_of_chain - np.arange(n_places)
    following = np.where(from_end > 0, np.arange(n_places) + 1, -1)
    place = np.full(len(valid), -1, dtype=np.int64)
    place[rows] = sorted_place
    depth = from_end[sorted_place]
    by_depth = rows[np.argsort(depth, kind="stable")]
    backwards = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1]) if len(rows) else []
    return Chains(place=place, following=following, backwards=backwards)


def after(chains: Chains, values: np.ndarray) -> np.ndarray:
    """Return the mean of `values` `[bsz]` at the next place of each row: `[bsz]`, 0 at the end of a
    chain and for rows in no chain.
    """
    if not len(chains.following):
        return np.zeros_like(values)
    mean = np.append(group_stats(values, np.maximum(chains.place, 0), chains.place >= 0).mean, 0.0)
    following = np.append(chains.following, -1)
    return mean[following[chains.place]]


def discounted_sums(chains: Chains, rewards: np.ndarray, discount: float) -> np.ndarray:
    """Return `G = reward + discount * mean G of the next place`: `[bsz]` float64, 0 for a row in no
    chain.
    """
    out = np.zeros(len(rewards))
    mean = np.zeros(len(chains.following) + 1)
    for rows in chains.backwards:
        place = chains.place[rows]
        out[rows] = rewards[rows] + discount * mean[chains.following[place]]
        _, local = np.unique(place, return_inverse=True)
        mean[place] = group_stats(out[rows], local).mean[local]
    return out
