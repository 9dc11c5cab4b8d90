from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_system.workflows.math.demos import Course
from examples.embedded.prepare import Recipe, prepare, recipe_hash
from examples.embedded.worlds import WORLDS
from verl.models.tiny import TinyModelSize

TINY = Recipe(
    num_train=20,
    num_test=5,
    size=TinyModelSize(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1),
    course=Course(count=64),
    batch_size=16,
)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_world_has_tasks_and_demonstrations_that_do_not_overlap(world):
    ours = WORLDS[world]
    course = replace(ours.course, count=40)
    split = ours.split(30, 10, 3, course)
    assert (len(split.train), len(split.test)) == (30, 10) and 0 < len(split.test_keys) <= 10
    texts = [{row["prompt"][0]["content"] for row in rows} for rows in (split.train, split.test)]
    assert not texts[0] & texts[1]
    demos = ours.demos(course, 3, split.test_keys)
    assert len(demos) == 40
    assert demos == ours.demos(course, 3, split.test_keys) != ours.demos(course, 4, split.test_keys)
    assert all([message["role"] for message in demo] == ["user", "assistant"] for demo in demos)


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
    assert [path.name for path in out.iterdir()] == [folder.name]


def test_another_recipe_is_another_folder():
    assert recipe_hash(TINY) == recipe_hash(replace(TINY))
    assert recipe_hash(TINY) != recipe_hash(replace(TINY, lr=1e-3))


def test_an_interrupted_preparation_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="batch"):
        prepare(tmp_path, replace(TINY, batch_size=0), num_threads=1)
    assert list(tmp_path.iterdir()) == []
