import pytest

from agent_system import AgentSystemError
from agent_system.task import task_from_row
from agent_system.workflows.data import main
from agent_system.workflows.plan_path import PlanPathEnv
from agent_system.workflows.plan_path.world.generate import (
    PlanPathDifficulty,
    generate,
    generate_split,
    to_row,
)
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.rules import walk


def test_five_hundred_maps_are_solved_by_their_shortest_path():
    for grid in generate(500, 0):
        made = walk(grid, grid.start, grid.shortest_moves(grid.start))
        assert made.reached and len(made.cells) == grid.shortest and 7 <= grid.shortest <= 18
        assert grid.height == grid.width == 10 and len(grid.walls) == 20
        assert parse_map(grid.text) == grid


def test_difficulty_sets_size_walls_and_path():
    for grid in generate(30, 0, PlanPathDifficulty(size=6, wall_share=0.25, min_path=3, max_path=4)):
        assert grid.height == 6 and len(grid.walls) == 9 and 3 <= grid.shortest <= 4


def test_train_and_test_share_no_map_even_where_maps_are_few():
    # 3x3 without walls has 9 starts x 8 goals = 72 maps in all.
    train, test = generate_split(
        40, 30, 0, PlanPathDifficulty(size=3, wall_share=0.0, min_path=1, max_path=4)
    )
    texts = [grid.text for grid in train + test]
    assert len(set(texts)) == 70 == len(texts)


def test_a_seed_makes_the_same_maps_and_another_one_others():
    first, again, other = (generate_split(20, 10, seed) for seed in (1, 1, 2))
    assert first == again
    assert not {g.text for g in first[0] + first[1]} & {g.text for g in other[0] + other[1]}


def test_test_maps_do_not_depend_on_how_many_are_trained_on():
    assert generate_split(5, 10, 3)[1] == generate_split(50, 10, 3)[1]


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        ({"size": 3, "wall_share": 0.0, "min_path": 8, "max_path": 8}, 1, "no map in 10000 draws"),
        ({"size": 2, "wall_share": 0.0, "min_path": 1, "max_path": 2}, 13, "found only 12 of 13"),
    ],
)
def test_a_difficulty_without_enough_maps_is_an_error(options, count, message):
    with pytest.raises(AgentSystemError, match=message):
        generate(count, 0, PlanPathDifficulty(**options))


@pytest.mark.parametrize(
    "options", [{"size": 1}, {"wall_share": 0.9}, {"min_path": 9, "max_path": 8}, {"min_path": 0}]
)
def test_an_impossible_difficulty_is_refused(options):
    with pytest.raises(AgentSystemError, match="found"):
        PlanPathDifficulty(**options)


def test_a_row_becomes_a_task_that_the_world_plays():
    grid = generate(1, 0)[0]
    env = PlanPathEnv()
    env.reset(task_from_row(to_row(grid, 0, "test")))
    assert env.grid == grid and to_row(grid, 0, "test")["extra_info"]["shortest"] == grid.shortest


def test_command_writes_both_files(tmp_path):
    import pyarrow.parquet as pq

    main(
        [
            "plan_path",
            "--out",
            str(tmp_path),
            "--seed",
            "1",
            "--train",
            "8",
            "--test",
            "4",
            "--size",
            "8",
            "--min-path",
            "3",
        ]
    )
    rows = {split: pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test")}
    assert (len(rows["train"]), len(rows["test"])) == (8, 4)
    assert not {row["extra_info"]["map"] for row in rows["train"]} & {
        row["extra_info"]["map"] for row in rows["test"]
    }
