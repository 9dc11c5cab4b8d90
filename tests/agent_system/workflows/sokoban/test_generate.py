import pytest

from agent_system import AgentSystemError
from agent_system.task import task_from_row
from agent_system.workflows.data import main
from agent_system.workflows.sokoban import SokobanDifficulty, SokobanEnv
from agent_system.workflows.sokoban.world import generate as module
from agent_system.workflows.sokoban.world.generate import generate, generate_split, puzzle_key, to_row
from agent_system.workflows.sokoban.world.rules import is_solved, parse_room, walk
from agent_system.workflows.sokoban.world.solver import Search

EASY, PAIRS = SokobanDifficulty(), SokobanDifficulty(boxes=2, min_pushes=3, max_pushes=9)


@pytest.mark.parametrize("difficulty", [EASY, PAIRS])
def test_hundred_rooms_are_solvable_and_as_hard_as_asked(difficulty: SokobanDifficulty) -> None:
    for puzzle in generate(100, 1, difficulty):
        room, state = parse_room(puzzle.text)
        made = walk(room, state, puzzle.solution.moves)
        assert not made.illegal and is_solved(room, made.states[-1])
        assert puzzle.solution.optimal and made.pushes == puzzle.solution.pushes
        assert difficulty.min_pushes <= made.pushes <= difficulty.max_pushes
        assert len(state.boxes) == difficulty.boxes and not state.boxes & room.goals
        assert (room.width, room.height) == (6, 6)


def test_walls_follow_their_share() -> None:
    counts = [
        sum(len(p.room.walls) for p in generate(50, 2, SokobanDifficulty(wall_share=share)))
        for share in (0.0, 0.3)
    ]
    assert counts[0] == 50 * 20 and counts[1] > 50 * 23


def test_a_seed_makes_the_same_rooms_and_another_seed_others() -> None:
    assert generate(20, 5, EASY) == generate(20, 5, EASY)
    assert generate(20, 5, EASY) != generate(20, 6, EASY)


def test_train_and_test_share_no_room_even_turned_or_mirrored() -> None:
    train, test = generate_split(300, 100, 0, EASY)
    assert len({p.text for p in train}) == 300 and len({p.text for p in test}) == 100
    assert not {p.key for p in train} & {p.key for p in test}


def test_the_key_forgets_turns_mirrors_and_the_player_alone() -> None:
    rooms = [
        "#####\n#@--#\n#$.-#\n#---#\n#####",
        "#####\n#-@-#\n#-.$#\n#---#\n#####",
        "#####\n#-$-#\n#-.-#\n#--@#\n#####",
    ]
    assert len({puzzle_key(*parse_room(text)) for text in rooms}) == 1
    assert puzzle_key(*parse_room("#####\n#@-.#\n#-$-#\n#---#\n#####")) != puzzle_key(*parse_room(rooms[0]))


def test_where_the_search_gives_up_the_way_back_is_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "solve", lambda room, start: Search(None, 0, exhausted=False))
    for puzzle in generate(20, 3, PAIRS):
        made = walk(puzzle.room, puzzle.start, puzzle.solution.moves)
        assert (
            is_solved(puzzle.room, made.states[-1])
            and made.pushes == puzzle.solution.pushes
            and not puzzle.solution.optimal
        )


def test_rooms_that_do_not_exist_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS_PER_ROOM", 50)
    with pytest.raises(AgentSystemError, match="found 0 of 1 Sokoban rooms"):
        generate(1, 0, SokobanDifficulty(size=5, min_pushes=25))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 4}, "size must be 5 to 12"),
        ({"boxes": 0}, "boxes must be 1 to 4"),
        ({"min_pushes": 5, "max_pushes": 4}, "min_pushes <= max_pushes"),
        ({"wall_share": 0.9}, "wall_share"),
    ],
)
def test_bad_difficulty_is_named(options: dict, words: str) -> None:
    with pytest.raises(AgentSystemError, match=words):
        SokobanDifficulty(**options)


def test_rows_on_disk_become_tasks_of_the_environment(tmp_path) -> None:
    import pyarrow.parquet as pq

    main(["sokoban", "--out", str(tmp_path), "--seed", "3", "--train", "6", "--test", "4", "--boxes", "2"])
    train, test = (pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    assert len(train) == 6 and len(test) == 4
    assert test == [
        to_row(p, i, "test") for i, p in enumerate(generate_split(6, 4, 3, SokobanDifficulty(boxes=2))[1])
    ]
    for row in train + test:
        env = SokobanEnv()
        assert env.reset(task_from_row(row)).text == row["prompt"][0]["content"]
        assert len(row["extra_info"]["solution"]) >= row["extra_info"]["pushes"] >= 2
