import copy
import threading

import pytest

from agent_system import AgentSystemError

pytest.importorskip("pettingzoo", reason="needs the extra farama")

import pettingzoo
from gymnasium import spaces
from gymnasium.utils import EzPickle

from agent_system.workflows.farama.world.game import Game
from agent_system.workflows.farama.world.snapshot import duplicate, freeze, thaw


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
    twin = thaw(freeze(env, "it"), "it")
    assert copy.deepcopy(env).unwrapped.board.squares == [0] * 9
    assert twin.unwrapped.board.squares == env.unwrapped.board.squares != [0] * 9
    twin.step(0)
    assert env.unwrapped.board.squares[0] == 0


def test_objects_stay_shared_inside_a_copy_and_functions_without_a_name_are_copied():
    one = Counts(3)
    one.count = 5
    first, second, function = thaw(freeze([one, one, lambda x: x + one.count], "it"), "it")
    assert first is second is not one
    assert (first.count, function(1)) == (5, 6)


def test_a_class_that_keeps_its_own_state_is_left_to_do_so():
    assert thaw(freeze(KeepsItself(1), "it"), "it").count == 101


def test_what_cannot_be_copied_is_named():
    with pytest.raises(
        AgentSystemError,
        match=r"the lock cannot be copied: TypeError: cannot pickle '_thread.lock'.*rollout.sampling=parallel",
    ):
        freeze(__import__("threading").Lock(), "the lock")


class LooksUp:
    """A wrapper as games have them: every other name is one of what it wraps."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


class LooksUpAndPicklesItself(LooksUp):
    def __getstate__(self):
        return {"env": self.env}


class Handle:
    """A part that cannot be pickled, and says how it is copied."""

    def __init__(self, count, lock=None):
        self.count, self.lock = count, threading.Lock()

    def __deepcopy__(self, memo):
        return Handle(self.count)


class Game2048(Counts):
    """A game whose state is in two places, and in a part that is a handle."""

    def __init__(self):
        super().__init__(1)
        self.handle = self.same = Handle(2)


def test_a_part_that_cannot_be_pickled_is_copied_by_its_own_rule():
    game = Game2048()
    game.count, game.handle.count = 5, 7
    twin, shared = duplicate([game, game.handle], "it")
    assert (twin.count, twin.handle.count) == (5, 7), "EzPickle's own rule would begin anew"
    assert twin.handle is twin.same is shared is not game.handle
    game.handle.count = 8
    assert twin.handle.count == 7
    with pytest.raises(
        AgentSystemError, match=r"the game cannot be copied: TypeError: cannot pickle '_thread\.lock'"
    ):
        duplicate([game, threading.Lock()], "the game")


class Tied(Handle):
    """A part that refers to an object of its game."""

    def __init__(self, to):
        super().__init__(1)
        self.to = to

    def __deepcopy__(self, memo):
        return Tied(copy.deepcopy(self.to, memo))


@pytest.mark.parametrize("kind", ["game", "list"])
def test_a_part_that_refers_to_its_game_is_refused_for_its_copy_would_have_another_one(kind):
    game = Game2048()
    game.moves = [1]
    game.handle = game.same = Tied(game if kind == "game" else game.moves)
    with pytest.raises(AgentSystemError, match="the game cannot be copied"):
        duplicate(game, "the game")
    game.handle.to = [1]
    assert duplicate(game, "the game").handle.to == [1]


def test_an_object_with_a_rule_for_copies_that_can_be_pickled_is_pickled():
    class Rule:
        def __deepcopy__(self, memo):
            raise AssertionError("not asked")

    assert isinstance(duplicate([Rule()], "it")[0], object)


def raises():
    raise ValueError("no board")


class WritesOnly:
    def __reduce__(self):
        return raises, ()


def test_wrappers_that_look_names_up_in_what_they_wrap_are_copied_with_their_state():
    wrapped = LooksUp(LooksUp(Counts(3)))
    wrapped.env.env.count = 5
    twin = thaw(freeze(wrapped, "it"), "it")
    wrapped.env.env.count = 6
    assert type(twin) is LooksUp and twin.count == 5


@pytest.mark.parametrize(
    ("value", "error"),
    [(LooksUpAndPicklesItself(Counts()), "RecursionError"), (WritesOnly(), "ValueError: no board")],
)
def test_what_can_be_written_and_not_read_is_told_as_what_cannot_be_written(value, error):
    with pytest.raises(
        AgentSystemError, match=f"the game cannot be copied: {error}.*rollout.sampling=parallel"
    ):
        thaw(freeze(value, "the game"), "the game")


@pytest.mark.parametrize("in_info", [True, False])
def test_random_moves_are_among_those_that_a_game_of_texts_lists(in_info):
    class Words:
        simultaneous = False
        seats = to_act = live = ("p",)

        def space(self, seat):
            return spaces.Text(8)

        def view(self, seat):
            offered = {"legal_moves": ["up", "down"]}
            return ("board", offered) if in_info else ({"board": "b", **offered}, {})

    game = Game(Words(), [])
    game._seed = 3
    drawn = []
    for game.moves in range(20):
        drawn.append(game.draw("p"))
    assert set(drawn) == {"up", "down"}
