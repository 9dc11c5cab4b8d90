import numpy as np
import pytest

from agent_system import AgentSystemError

pytest.importorskip("pettingzoo", reason="needs the extra farama")

from gymnasium import spaces

from agent_system.workflows.farama import IllegalActionError, actions_text, read_action, text_of
from tests.agent_system.workflows.farama.toys import MIXED

MOVES = ["left", "Down"]


def plain(action):
    return (
        action.tolist()
        if isinstance(action, np.ndarray)
        else [plain(part) for part in action]
        if isinstance(action, tuple)
        else action
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (np.int64(3), "3"),
        (np.bool_(True), "1"),
        (0.123456, "0.1235"),
        (np.float32(1.0), "1"),
        (np.array(2.5), "2.5"),
        (np.array([1, 0]), "1 0"),
        (np.array([[1, 0], [0, 1]]), "1 0\n0 1"),
        (np.zeros((2, 1, 2), dtype=np.int8), "0 0\n\n0 0"),
        ("a text", "a text"),
        ({"at": np.array([1, 2]), "left": (1, 2.0)}, "at: 1 2\nleft: 1, 2"),
    ],
)
def test_observations_as_text(value, text):
    assert text_of(value) == text


def test_an_image_must_be_described():
    with pytest.raises(AgentSystemError, match=r"shape \(84, 84, 3\) holds 21168 numbers.*override describe"):
        text_of(np.zeros((84, 84, 3)))


@pytest.mark.parametrize(
    ("space", "names", "mask", "text"),
    [
        (spaces.Discrete(3), (), None, "0, 1, 2"),
        (spaces.Discrete(3, start=-1), (), [1, 0, 1], "-1, 1"),
        (spaces.Discrete(2), MOVES, [0, 1], "Down"),
        (spaces.Discrete(900), (), None, "a whole number from 0 to 899"),
        (spaces.MultiDiscrete([3, 2], start=[-1, 0]), (), None, "a list of whole numbers, [-1 to 1, 0 to 1]"),
        (spaces.MultiBinary(4), (), None, "a list of 4 numbers, each 0 or 1"),
        (spaces.Box(-1.0, 2.5, (2,)), (), None, "a list of numbers, [-1 to 2.5, -1 to 2.5]"),
        (spaces.Box(0, 9, (1,), np.int8), (), None, "a list of whole numbers, [0 to 9]"),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)]),
            (),
            None,
            "a JSON list: 0, 1; then a list of 1 numbers, each 0 or 1",
        ),
        (
            MIXED,
            (),
            None,
            'a JSON object: "move": 0, 1, 2; "push": a list of numbers, [-1 to 1, -1 to 1]; "say": a text of '
            "1 to 5 characters",
        ),
    ],
)
def test_choices_as_text(space, names, mask, text):
    assert actions_text(space, names, mask) == text


@pytest.mark.parametrize(
    ("space", "names", "words"),
    [
        (spaces.Discrete(3), MOVES, "env.params.actions has 2 names.*Discrete"),
        (spaces.Box(0, 1, (2,)), MOVES, "env.params.actions has 2 names.*Box"),
        (spaces.Sequence(spaces.Discrete(2)), (), "override choices"),
    ],
)
def test_choices_that_cannot_be_worded_are_errors(space, names, words):
    with pytest.raises(AgentSystemError, match=words):
        actions_text(space, names)


@pytest.mark.parametrize(
    ("space", "names", "text", "action"),
    [
        (spaces.Discrete(3, start=-1), (), " -1 ", -1),
        (spaces.Discrete(2), MOVES, "dOWN", 1),
        (spaces.MultiDiscrete([3, 2]), (), "[2, 0]", [2, 0]),
        (spaces.MultiDiscrete([3, 2]), (), "2, 0", [2, 0]),
        (spaces.MultiBinary((2, 2)), (), "[[0, 1], [1, 0]]", [[0, 1], [1, 0]]),
        (spaces.Box(-1.0, 1.0, (2,)), (), "[0.5, -1]", [0.5, -1]),
        (spaces.Text(5), (), "hello", "hello"),
        (spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)]), (), "[1, [1]]", [1, [1]]),
    ],
)
def test_texts_that_are_actions(space, names, text, action):
    found = read_action(space, text, names)
    assert space.contains(found)
    assert plain(found) == action


def test_an_object_is_read_part_by_part():
    action = read_action(MIXED, '{"move": 2, "push": [0.5, 1], "say": "hi"}')
    assert (action["move"], action["push"].tolist(), action["say"]) == (2, [0.5, 1.0], "hi")


HOSTILE = [
    "",
    "5",
    "-1",
    "99999999999999999999999",
    "2.0",
    "1e999",
    "NaN",
    "[" * 1500,
    "[1, 2, 3]",
    '["a", "b"]',
    "[null, 0]",
    "{}",
    "up",
]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "x" * 100_000, "[300, 0]", "[0.5, 0]", "[Infinity, 0]", "[[0], [0, 1]]", '{"move": 2}']
)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(2),
        spaces.Box(-0.25, 0.25, (2,)),
        spaces.Box(0, 44, (2,), np.int8),
        spaces.Tuple([spaces.Discrete(3), spaces.Text(2)]),
        MIXED,
    ],
    ids=str,
)
def test_invalid_texts_are_illegal_actions(space, text):
    with pytest.raises(IllegalActionError):
        read_action(space, text)


@pytest.mark.parametrize("text", ["[Infinity]", "[1e999]", "[NaN]"])
def test_an_unbounded_box_takes_finite_numbers_only(text):
    with pytest.raises(IllegalActionError):
        read_action(spaces.Box(-np.inf, np.inf, (1,)), text)


def test_with_names_numbers_are_no_actions():
    with pytest.raises(IllegalActionError):
        read_action(spaces.Discrete(2), "1", MOVES)
