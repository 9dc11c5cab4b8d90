import copy

import pettingzoo
import pytest
from gymnasium.utils import EzPickle

from agent_system import AgentSystemError
from agent_system.workflows.farama.world.snapshot import freeze, thaw


class Counts(EzPickle):
    def __init__(self, start: int = 0) -> None:
        EzPickle.__init__(self, start)
        self.count = start


class KeepsItself(Counts):
    def __getstate__(self):
        return {"count": self.count}

    def __setstate__(self, state):
        self.count = state["count"] + 100


def test_a_copy_keeps_the_state_that_deepcopy_loses():
    env = pettingzoo.make("aec", "classic/tictactoe-v3")
    env.reset(seed=0)
    env.step(4)
    twin = thaw(freeze(env, "it"))
    assert copy.deepcopy(env).unwrapped.board.squares == [0] * 9
    assert twin.unwrapped.board.squares == env.unwrapped.board.squares != [0] * 9
    twin.step(0)
    assert env.unwrapped.board.squares[0] == 0


def test_objects_stay_shared_inside_a_copy_and_functions_without_a_name_are_copied():
    one = Counts(3)
    one.count = 5
    first, second, function = thaw(freeze([one, one, lambda x: x + one.count], "it"))
    assert first is second is not one
    assert (first.count, function(1)) == (5, 6)


def test_a_class_that_keeps_its_own_state_is_left_to_do_so():
    assert thaw(freeze(KeepsItself(1), "it")).count == 101


def test_what_cannot_be_copied_is_named():
    with pytest.raises(AgentSystemError, match=r"the lock cannot be copied: cannot pickle '_thread.lock'.*rollout.sampling=parallel"):
        freeze(__import__("threading").Lock(), "the lock")
