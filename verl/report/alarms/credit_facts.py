"""What the advantages of a step say, of columns with one entry a trained row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.utils.plain import number

# Smaller advantages are 0 after rounding.
NO_ADVANTAGE = 1e-8


def row_key(traj_uid: Any, turn: Any, call: Any, candidate: Any) -> int:
    """Return the key of one reply of an episode, in this process."""
    return hash(f"{traj_uid} {turn} {call} {candidate}")


@dataclass
class CreditFacts:
    """What rules read of the advantages of a step.

    Attributes:
        rows: rows with an advantage, by policy.
        positive: of each policy, sum of advantage times tokens over its rows with positive ones.
        total: of each policy, sum of abs(advantage) times tokens.
        log_probs: sampler's log-probability of each reply, by `row_key`.
    """

    rows: dict[str, int] = field(default_factory=dict)
    positive: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    log_probs: dict[int, float] = field(default_factory=dict)


def credit_facts(columns: Mapping[str, Sequence[Any]]) -> CreditFacts | None:
    """Return what the columns of a step say; None if they are not those of a credit file.

    Args:
        columns: `policy_id`, `advantage`, `tokens`, and for `log_probs` also `traj_uid`, `turn`,
            `call`, `candidate` and `logp`; one entry a row.
    """
    try:
        rows = list(zip(columns["policy_id"], columns["advantage"], columns["tokens"], strict=True))
    except (KeyError, TypeError, ValueError):
        return None
    facts = CreditFacts()
    for policy, advantage, tokens in rows:
        mass = float(number(advantage) or 0.0) * float(number(tokens) or 0.0)
        if not math.isfinite(mass) or abs(mass) <= NO_ADVANTAGE:
            continue
        policy = str(policy)
        facts.rows[policy] = facts.rows.get(policy, 0) + 1
        facts.total[policy] = facts.total.get(policy, 0.0) + abs(mass)
        facts.positive[policy] = facts.positive.get(policy, 0.0) + max(mass, 0.0)
    identity = [columns.get(name) for name in ("traj_uid", "turn", "call", "candidate", "logp")]
    if all(column is not None for column in identity):
        for traj_uid, turn, call, candidate, logp in zip(*(c or () for c in identity), strict=False):
            if (log_prob := number(logp)) is not None:
                facts.log_probs[row_key(traj_uid, turn, call, candidate)] = float(log_prob)
    return facts
