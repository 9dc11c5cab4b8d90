"""What the index of a run says: accuracy, groups, distinct texts, what was heard, comparison."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.report.reading import column, episodes_in, rewrite, small_run
from verl.report.columns import Columns, values
from verl.report.index import read_report, run_names
from verl.utils.accuracy import estimate_avg


def run_at(folder: Path) -> dict[str, Any]:
    return read_report([folder]).runs[0]


def test_a_column_of_equal_values_is_one_value() -> None:
    columns = Columns(("a", "b"))
    assert columns.to_json() == {"length": 0, "a": {"all": None}, "b": {"all": None}}
    for row in ({"a": 1, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": 2}):
        columns.append(row)
    table = columns.to_json()
    assert table == {"length": 3, "a": {"all": 1}, "b": [None, None, 2]}
    assert values(table, "a") == columns.get("a") == [1, 1, 1]
    assert values(table, "absent") == [None, None, None]
    assert columns.to_json(start=2) == {"length": 1, "a": {"all": 1}, "b": [2]}
    columns.replace("b", [0, 0, 0])
    assert columns.to_json()["b"] == {"all": 0}


def test_rows_are_those_of_the_files_and_calls_lie_together(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=2)
    run = run_at(folder)
    episodes = episodes_in(folder)
    for name in ("uid", "traj_uid", "task_id", "index", "team_reward", "answer", "turn_rewards"):
        assert column(run["episodes"], name) == [episode[name] for episode in episodes]
    starts = column(run["episodes"], "first_call")
    counts = column(run["episodes"], "calls")
    agents = column(run["calls"], "agent")
    for at, episode in enumerate(episodes):
        assert [run["agents"][agent]["agent"] for agent in agents[starts[at] : starts[at] + counts[at]]] == [
            call["agent_id"] for call in episode["calls"]
        ]
        path = folder / run["files"][column(run["episodes"], "file")[at]]
        assert json.loads(path.read_text().splitlines()[column(run["episodes"], "line")[at] - 1]) == episode
    assert run["agents"][0] == {
        "agent": "Solver Agent", "policy": "solver_agent", "group": "solver_agent", "trained": True
    }  # fmt: skip


def test_equal_texts_have_equal_numbers(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    file = folder / "trajectories" / "train_000001.jsonl"

    def change(row: dict[str, Any]) -> None:
        row["calls"][0] |= {"reply": "same", "anchor": ""}
        row["calls"][1] |= {"reply": "same", "anchor": "state", "action": "a" * 1000}

    for line in (0, 1):
        rewrite(file, change, line)
    run = run_at(folder)
    start = column(run["episodes"], "first_call")[column(run["episodes"], "step").index(1)]
    replies = column(run["calls"], "reply")[start : start + 6]
    assert len(set(replies[:4])) == 1 and len(set(replies)) == 3
    assert column(run["calls"], "anchor")[start : start + 4] == [-1, run["calls"]["anchor"][start + 1]] * 2
    actions = column(run["calls"], "action")[start : start + 4]
    assert actions[1] == actions[3] and len(actions[1]) == 200
    questions = column(run["episodes"], "task_text")
    uids = column(run["episodes"], "uid")
    assert len(set(zip(questions, uids, strict=True))) == len(set(uids))


@pytest.mark.parametrize(
    ("reply", "prompt", "answer", "is_heard"),
    [
        ("<think>hm</think> go left\n", "Solver said: go left", "", 1),
        ("go left", "nothing", "so: go left", 1),
        ("go left", "nothing", "right", 0),
        ("  ", "  ", "", 0),
    ],
)
def test_a_reply_is_heard_if_its_end_is_in_a_later_prompt_or_the_answer(
    tmp_path: Path, reply: str, prompt: str, answer: str, is_heard: int
) -> None:
    folder = small_run(tmp_path / "run")

    def change(row: dict[str, Any]) -> None:
        row["answer"] = answer
        row["calls"][0] |= {"reply": reply, "action": ""}
        row["calls"][1]["prompt"] = f"{prompt} (go left is possible)" if is_heard else prompt

    rewrite(folder / "trajectories" / "train_000001.jsonl", change)
    run = run_at(folder)
    at = column(run["episodes"], "first_call")[column(run["episodes"], "step").index(1)]
    assert column(run["calls"], "heard")[at] == is_heard


def test_accuracy_is_that_of_validations_with_failed_episodes_as_zero(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", tasks=8)
    rewrite(folder / "trajectories" / "val_000002.jsonl", lambda row: row.update(failure="timeout"))
    run = run_at(folder)
    for step, point in zip((0, 2), run["accuracy"]["points"], strict=True):
        rows = [json.loads(line) for line in (folder / f"trajectories/val_{step:06d}.jsonl").open()]
        rates = [0.0 if row["failure"] else row["info"]["success"] for row in rows]
        mean = estimate_avg(rates, [row["task_id"] for row in rows])
        assert point == {
            "step": step, "n": 8, "rate": mean.value,
            "low": pytest.approx(mean.low, abs=1e-8), "high": pytest.approx(mean.high, abs=1e-8),
        }  # fmt: skip
    assert [run["accuracy"]["before"], run["accuracy"]["after"]] == run["accuracy"]["points"]
    assert list(run["accuracy"]["files"]) == ["toy"] and run["accuracy"]["measure"] == "success"


def test_accuracy_of_a_checkpoint_comes_first(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    checkpoint = folder / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    entry = {"value": 0.25, "low": 0.125, "high": 0.5, "num_tasks": 100}
    table = [["team", "accuracy avg@4", entry], ["team", "accuracy pass@4", entry | {"value": 0.9}]]
    state = {"global_step": 2, "before": {"metrics": {}, "table": table}, "placement": ["damaged"]}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    (folder / "checkpoints" / "global_step_1").mkdir()
    accuracy = run_at(folder)["accuracy"]
    assert accuracy["before"] == {"step": 0, "n": 100, "rate": 0.25, "low": 0.125, "high": 0.5}
    assert accuracy["after"] == accuracy["points"][1]


def test_a_validation_after_the_last_checkpoint_is_newer_than_its_accuracy(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=4)
    entry = {"value": 0.25, "low": 0.125, "high": 0.5, "num_tasks": 100}
    table = [["team", "accuracy avg@4", entry]]
    for step, rate in ((2, None), (4, 0.25)):
        checkpoint = folder / "checkpoints" / f"global_step_{step}"
        checkpoint.mkdir(parents=True)
        state = {"global_step": step, "after": {"metrics": {}, "table": table}}
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
        after = run_at(folder)["accuracy"]["after"]
        assert after["step"] == 4 and (after["rate"] == 0.25) is (rate is not None)


def test_a_world_without_success_has_its_team_reward(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    for file in folder.glob("trajectories/val_*"):
        for line in range(3):
            rewrite(file, lambda row: row.update(info={}, team_reward=-2.5), line)
    accuracy = run_at(folder)["accuracy"]
    assert accuracy["measure"] == "team_reward" and accuracy["after"]["rate"] == -2.5


def test_groups_that_were_not_trained_have_the_cause(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    uid = json.loads((folder / "trajectories" / "train_000002.jsonl").open().readline())["uid"]
    file = folder / "credit" / "step_000002.json"
    content = json.loads(file.read_text())
    tokens = [None, [-0.123456789, None, 2.0], *[None] * (len(content["columns"]["turn"]) - 2)]
    content["columns"]["log_prob_after"] = tokens
    file.write_text(json.dumps(content | {"left_out": {uid: "no signal"}}))
    run = run_at(folder)
    uids = column(run["episodes"], "uid")
    marked = [uids[at] for at, cause in enumerate(column(run["episodes"], "left_out")) if cause]
    assert marked == [uid] * 2
    content = json.loads(file.read_text())["columns"]
    assert run["credit"]["2"]["traj_uid"] == content["traj_uid"]
    assert run["credit"]["2"]["log_prob_after"] == tokens
    assert run["credit"]["2"]["logp"] == pytest.approx(content["logp"], rel=1e-4)
    assert run["credit"]["2"]["advantage"] == pytest.approx(content["advantage"], rel=1e-8)


def test_two_runs_are_compared_by_keys_and_tasks(tmp_path: Path) -> None:
    folders = [small_run(tmp_path / name) for name in ("a/run", "b/run")]
    for folder, (lr, successes) in zip(folders, ((1, (1.0, 0.0, 1.0)), (2, (1.0, 1.0, 0.0))), strict=True):
        (folder / "config.yaml").write_text(f"lr: {lr}\ncommon: 1\n" + "own: x\n" * (lr == 2))
        for line, success in enumerate(successes):
            rewrite(
                folder / "trajectories" / "val_000002.jsonl",
                lambda row, success=success: row["info"].update(success=success),
                line,
            )
    report = read_report(folders)
    assert [run["name"] for run in report.runs] == ["a/run", "b/run"]
    compare = report.to_json()["compare"]
    assert compare["keys"] == [
        {"key": "lr", "values": [1, 2]},
        {"key": "own", "values": ["(absent)", "x"]},
    ]
    assert [(task["task_id"], task["rates"]) for task in compare["tasks"]] == [
        ("toy:1", [0.0, 1.0]),
        ("toy:2", [1.0, 0.0]),
    ]
    assert compare["common"] == 3
    for task in compare["tasks"]:
        for run, members in zip(report.runs, task["episodes"], strict=True):
            rows = [
                (column(run["episodes"], "task_id")[at], column(run["episodes"], "step")[at])
                for at in members
            ]
            assert rows == [(task["task_id"], 2)]


def test_names_of_runs_differ() -> None:
    assert run_names([Path("/x/a/r"), Path("/x/b/r"), Path("/x/c")]) == ["a/r", "b/r", "c"]
    assert run_names([Path("/y/x/r"), Path("/y/x/r")]) == ["y/x/r (1)", "y/x/r (2)"]


def test_the_audit_of_a_step_is_read(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "audit").mkdir()
    (folder / "audit" / "step_000002.json").write_text(json.dumps({"format": 1, "step": 2, "decisions": 5}))
    assert run_at(folder)["audit"] == [{"format": 1, "step": 2, "decisions": 5}]


def test_texts_do_not_stay_in_memory(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=1, tasks=40, calls=1)
    file = folder / "trajectories" / "train_000001.jsonl"
    rows = [json.loads(line) for line in file.open()]
    with file.open("w") as out:
        for row in rows:
            row["calls"][0] |= {
                "reply": "ab " * 170_000,
                "prompt": f"{row['traj_uid']} " * 10_000,
                "anchor": "s" * 9999,
            }
            out.write(json.dumps(row) + "\n")
    assert file.stat().st_size > 50_000_000
    tracemalloc.start()
    report = read_report([folder])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.runs[0]["calls"]["length"] > 80 and peak < 12_000_000
