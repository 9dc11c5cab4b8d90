"""Whole plays for the conformance test: what agents might do in a world, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from agent_system import BaseEnv, Task

JUNK = ["", " ", "what?", "[" * 50, "1e9", "\x00\ud7ff", "None", "🙂", "__import__('os')", "U" * 3000]


def plays(
    agents: Sequence[str], actions: st.SearchStrategy[str], longest: int = 6
) -> st.SearchStrategy[list[Any]]:
    """Lists of pairs (agent, action) for `act` and of actions for `step`; about one in five is no action at
    all.
    """
    texts = st.one_of(actions, actions, actions, actions, st.sampled_from(JUNK))
    return st.lists(st.one_of(st.tuples(st.sampled_from(agents), texts), texts), min_size=1, max_size=longest)


def ends(env: BaseEnv, task: Task, play: Sequence[Any]) -> bool:
    """Whether the last action of a play ends the episode, and none before."""
    env.reset(task)
    done = [(env.act(*action) if isinstance(action, tuple) else env.step(action)).done for action in play]
    return done[-1] and not any(done[:-1])
