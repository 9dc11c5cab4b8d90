import subprocess
from dataclasses import replace
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.embedded.math.demos import MathCourse
from examples.embedded.plan_path.demos import make_demos as make_plan_path_demos
from examples.embedded.prepare import Recipe, main, prepare, recipe_hash
from examples.embedded.worlds import WORLDS
from tests.house.source import ROOT
from verl.models.tiny import TinyModelSize

TINY = Recipe(
    num_train=20,
    num_test=5,
    size=TinyModelSize(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1),
    course=MathCourse(count=64, batch_size=16),
)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_world_has_tasks_and_demonstrations_that_do_not_overlap(world):
    ours = WORLDS[world]
    course = replace(ours.course, count=40)
    split = ours.tasks.split(30, 10, 3, course.difficulty)
    assert (len(split.train), len(split.test)) == (30, 10) and 0 < len(split.test_keys) <= 10
    texts = [{row["prompt"][0]["content"] for row in rows} for rows in (split.train, split.test)]
    assert not texts[0] & texts[1]
    demos = ours.demos(course, 3, split.test_keys)
    assert len(demos) == 40
    assert demos == ours.demos(course, 3, split.test_keys) != ours.demos(course, 4, split.test_keys)
    roles = [[message["role"] for message in demo] for demo in demos]
    if world == "math_tool":  # replies that call a tool come before the answer
        assert any("tool" in demo for demo in roles)
        roles = [
            [role for role, following in pairwise([*demo, ""]) if "tool" not in (role, following)]
            for demo in roles
        ]
    assert roles == [["user", "assistant"]] * len(demos)


def test_the_default_maps_of_plan_path_have_a_fifth_of_walls_and_views_without_visits():
    course = replace(WORLDS["plan_path"].courses["default_maps"], count=200)
    split = WORLDS["plan_path"].tasks.split(5, 5, 3, course.difficulty)
    maps = [row["prompt"][0]["content"] for row in split.train]
    assert {text.count("#") / len(text.replace("\n", "")) for text in maps} == {0.2}
    views = [demo[0]["content"] for demo in make_plan_path_demos(course, 3)]
    assert all(" at 0\n" in view for view in views) and not any(
        "worn" in demo[1]["content"] for demo in make_plan_path_demos(course, 3)
    )
    assert any(
        " at 2\n" in demo[0]["content"] for demo in make_plan_path_demos(replace(course, visits=True), 3)
    )


def test_an_unknown_course_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prepare", "--world", "plan_path", "--course", "default"])
    with pytest.raises(SystemExit):
        main()
    assert "--course default: plan_path has default_maps" in capsys.readouterr().err


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    out = tmp_path_factory.mktemp("embedded")
    return out, prepare(out, TINY, num_threads=1)


def test_data_and_model_are_complete(prepared):
    _, folder = prepared
    train, test = (pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    assert (len(train), len(test)) == (20, 5)
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in test}
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert (folder / "model" / "metrics.jsonl").is_file()


def test_a_second_call_uses_what_is_there(prepared):
    out, folder = prepared
    before = (folder / "model" / "model.safetensors").stat().st_mtime_ns
    assert prepare(out, TINY, num_threads=1) == folder
    assert (folder / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in out.iterdir() if path.is_dir()] == [folder.name]


def test_another_recipe_is_another_folder():
    assert recipe_hash(TINY) == recipe_hash(replace(TINY))
    assert recipe_hash(TINY) != recipe_hash(replace(TINY, lr=1e-3))


def test_an_interrupted_preparation_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="batch"):
        prepare(tmp_path, replace(TINY, course=MathCourse(batch_size=0)), num_threads=1)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_two_that_ask_at_the_same_time_share_one_folder(tmp_path, forked_python):
    command = [
        forked_python,
        "-m",
        "examples.embedded.prepare",
        "--world",
        "plan_path",
        "--demos",
        "64",
        "--threads",
        "1",
    ]
    both = [
        subprocess.Popen([*command, "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate(timeout=200)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(printed) == 1
