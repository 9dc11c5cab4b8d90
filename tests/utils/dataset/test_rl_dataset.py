import pytest

from verl.trainer.config import DataConfig
from verl.utils.dataset import DatasetError, PromptMeasure, RLHFDataset, read_rows, write_rows


def row(words: int = 2, truth: str = "4", **extra: object) -> dict:
    content = " ".join(["w"] * words)
    return {
        "data_source": "demo",
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0},
        **extra,
    }


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_what_is_written_is_read_back(tmp_path, name):
    rows = [row(1), row(3, "½")]
    path = write_rows(rows, tmp_path / "split=train" / name)
    assert read_rows(path) == rows
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_rows_of_all_files_keep_their_order_and_get_stable_names(tmp_path, word_tokenizer):
    files = [
        write_rows([row(1), row(90), row(2)], tmp_path / "a.parquet"),
        write_rows([row(3)], tmp_path / "b.jsonl"),
    ]
    dataset = RLHFDataset(files, word_tokenizer, DataConfig(max_prompt_length=20))
    assert [r["task_id"] for r in dataset] == ["demo:0", "demo:2", "demo:3"]
    assert dataset[2]["raw_prompt"] == [{"role": "user", "content": "w w w"}]
    assert dataset.num_overlong == 1


def test_prompt_length_counts_the_template_once_and_includes_the_reply_opening(tmp_path, word_tokenizer):
    file = write_rows([row(2)], tmp_path / "a.jsonl")  # <s> user w w assistant: five tokens
    assert len(RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=5))) == 1
    with pytest.raises(DatasetError, match="max_prompt_length=4"):
        RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=4))


def test_overlong_prompt_is_an_error_when_the_filter_is_off(tmp_path, word_tokenizer):
    file = write_rows([row(2), row(50)], tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match="demo:1: prompt of 53 tokens"):
        RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=20, filter_overlong_prompts=False))


def test_a_row_must_fit_every_prompt_that_is_made_of_it(tmp_path, word_tokenizer):
    file = write_rows([row(2), row(5), row(8), row(11)], tmp_path / "a.jsonl")

    def words(rows, more):
        return [len(r["raw_prompt"][0]["content"].split()) + more for r in rows]

    measures = [
        PromptMeasure("agent 'A'", 10, lambda rows: words(rows, 0)),
        PromptMeasure("agent 'B'", 12, lambda rows: words(rows, 6)),
    ]
    dataset = RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=1000), measures=measures)
    assert [r["index"] for r in dataset] == [0, 1]
    with pytest.raises(
        DatasetError, match=r"demo:3: prompt of 11 tokens for agent 'A' is over rollout.prompt_length=10"
    ):
        RLHFDataset(file, word_tokenizer, DataConfig(filter_overlong_prompts=False), measures=measures)


def test_arguments_of_the_chat_template_are_counted(tmp_path, word_tokenizer, monkeypatch):
    monkeypatch.setattr(
        word_tokenizer, "chat_template", word_tokenizer.chat_template + "{% if more %} w w w{% endif %}"
    )
    file = write_rows([row(2), row(5)], tmp_path / "a.jsonl")
    assert len(RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=8))) == 2
    assert (
        len(
            RLHFDataset(
                file,
                word_tokenizer,
                DataConfig(max_prompt_length=8, apply_chat_template_kwargs={"more": True}),
            )
        )
        == 1
    )


def test_max_samples_are_taken_after_the_filter(tmp_path, word_tokenizer):
    file = write_rows([row(90), row(1), row(2), row(3)], tmp_path / "a.jsonl")
    dataset = RLHFDataset(file, word_tokenizer, DataConfig(max_prompt_length=20), max_samples=2)
    assert [r["index"] for r in dataset] == [1, 2]


@pytest.mark.parametrize("truth", [None, "", " \n", [], [" ", None], {}, float("nan"), "missing"])
def test_row_without_ground_truth_is_named_by_file_and_row(tmp_path, truth):
    bad = row() | {
        "reward_model": {"style": "rule"} if truth == "missing" else {"style": "rule", "ground_truth": truth}
    }
    file = write_rows([row(), bad], tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match=r"a\.jsonl, row 1: no ground truth"):
        RLHFDataset(file, None, DataConfig())


def test_an_environment_that_judges_by_itself_needs_no_ground_truth(tmp_path):
    file = write_rows([row() | {"reward_model": None}, row(truth="")], tmp_path / "a.jsonl")
    assert len(RLHFDataset(file, None, DataConfig(), needs_ground_truth=False)) == 2


def test_zero_is_a_ground_truth(tmp_path):
    file = write_rows([row(truth=0)], tmp_path / "a.jsonl")  # type: ignore[arg-type]
    assert RLHFDataset(file, None, DataConfig())[0]["reward_model"]["ground_truth"] == 0


def test_wrong_prompt_key_names_the_columns_there_are(tmp_path):
    file = write_rows([row()], tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match=r"'question' \(data.prompt_key\).*columns: data_source, prompt"):
        RLHFDataset(file, None, DataConfig(prompt_key="question"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.parquet", None, "no such data file"),
        ("a.csv", "x", "suffix '.csv'"),
        ("a.jsonl", '{"a": 1}\n{oops\n', "line 2: not JSON"),
        ("a.json", '{"a": 1}', "expected a list"),
        ("a.jsonl", "[1]\n", "row 0: expected an object"),
        ("a.parquet", "not parquet", "not a readable parquet"),
        ("empty.jsonl", "", "no rows in"),
    ],
)
def test_unusable_file_says_what_is_wrong(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DatasetError, match=message):
        RLHFDataset(tmp_path / name, None, DataConfig())


def test_no_files_is_an_error():
    with pytest.raises(DatasetError, match=r"data\.train_files"):
        RLHFDataset([], None, DataConfig())


def test_handing_out_a_row_does_not_share_it(tmp_path):
    dataset = RLHFDataset(write_rows([row()], tmp_path / "a.jsonl"), None, DataConfig())
    dataset[0]["extra"] = 1
    assert "extra" not in dataset[0]


def test_a_row_of_jsonl_is_one_line_whatever_a_model_wrote(tmp_path):
    reply = "a\x85b\u2028c\u2029d\x1ce\ud800 世"
    file = write_rows([{"reply": reply}, {"reply": "next"}], tmp_path / "rows.jsonl")
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) == 2 and "世" in text
    assert [row["reply"] for row in read_rows(file)] == [reply, "next"]
