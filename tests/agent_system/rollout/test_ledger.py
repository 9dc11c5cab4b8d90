"""Rewards are summed in the order of calls, whatever the order of replies."""

from __future__ import annotations

from itertools import permutations

from agent_system import Outcome
from agent_system.rollout.ledger import Ledger


def test_the_order_in_which_acts_are_recorded_changes_no_bit() -> None:
    sums = set()
    for order in permutations(range(3)):
        ledger = Ledger("World", lambda _: None)
        callers = {0: "A", 1: "B", 2: "C"}
        ledger.open_turn(callers)
        for call in order:
            share = (0.1, 0.2, 0.7)[call]
            ledger.act(Outcome(share, {"A": share, 1: share}), call, 1)
        ledger.step(Outcome(0.3, {0: 0.05, "A": 0.05}))
        sums.add((ledger.team_reward, ledger.local(1, 0), ledger.local(1, 1), ledger.local(1, 2)))
    assert sums == {(0.1 + 0.2 + 0.7 + 0.3, 0.1 + 0.2 + 0.7 + 0.1, 0.1 + 0.2 + 0.7, 0)}
