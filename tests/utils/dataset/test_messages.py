"""Rows as people store them: JSON as text, null fields of parquet, parts of text, other encodings; and one
line for what cannot be read.
"""

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl.trainer.config import DataConfig
from verl.trainer.sft.chats import read_chats
from verl.utils.dataset import DatasetError, RLHFDataset, read_rows, write_rows
from verl.utils.dataset.messages import read_messages, read_tools

ASKED = {"role": "user", "content": "w w"}
TRUTH = {"style": "rule", "ground_truth": "4"}


def called(arguments, **fields):
    call = {"type": "function", "function": {"name": "get", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **fields}


def row(prompt, **columns):
    return {
        "data_source": "demo",
        "prompt": prompt,
        "reward_model": TRUTH,
        "extra_info": {"index": 0},
        **columns,
    }


def only(dataset):
    [task] = dataset
    return task


@pytest.mark.parametrize("empty", ["", {}, "{}"])
def test_a_call_without_arguments_has_none(empty):
    (read,) = read_messages([called(empty)], "it")
    assert read["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
@pytest.mark.parametrize(
    "column", ["prompt", "extra_info", "reward_model"]
)  # two rows with different fields: parquet gives each the other's as null
def test_a_row_has_the_fields_that_were_written_whatever_the_file(tmp_path, name, column):
    values = {
        "prompt": (
            [ASKED, called({"a": 3}), ASKED],
            [ASKED, called({"city": "Oslo", "at": {"x": [1]}}, name="b"), ASKED],
        ),
        "extra_info": ({"index": 0, "a": {"b": 1}}, {"index": 1, "c": [{"d": 2}, {"e": 3}]}),
        "reward_model": ({"ground_truth": {"a": "1"}, "style": "rule"}, {"ground_truth": {"target": ["x"]}}),
    }[column]
    rows = [row([ASKED]) | {column: value} for value in values]
    if name == "a.json":
        (tmp_path / name).write_text(json.dumps(rows))
    else:
        write_rows(rows, tmp_path / name)
    read = [
        task["raw_prompt" if column == "prompt" else column]
        for task in RLHFDataset(tmp_path / name, None, DataConfig())
    ]
    assert read == list(values)


def test_nulls_of_parquet_are_left_out_at_every_depth_and_stay_in_lists(tmp_path):
    cells = [{"x": [{"a": 1}, None]}, {"x": [{"b": {"c": 2}}, None]}, None]
    file = write_rows([{"cell": cell, "n": n} for n, cell in enumerate(cells)], tmp_path / "a.parquet")
    assert [each["cell"] for each in read_rows(file)] == cells


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
@pytest.mark.parametrize("column", ["prompt", "extra_info", "reward_model"])
def test_a_cell_may_be_json_text(tmp_path, name, column):
    plain = row([ASKED, called({"a": 3}), ASKED])
    file = write_rows([plain | {column: json.dumps(plain[column])}], tmp_path / name)
    task = only(RLHFDataset(file, None, DataConfig()))
    assert (
        task["raw_prompt"] == plain["prompt"]
        and task["reward_model"] == TRUTH
        and task["extra_info"] == {"index": 0}
    )


def test_a_prompt_that_is_text_is_a_question_even_where_it_begins_as_json_does(tmp_path):
    texts = [
        "w",
        "[1, 2] w",
        "{w",
        "[1, 2]",
        '"[1, 2]"',
        '{"a": 1}',
        "['a', {'role': 'x'}]",
        '"w"',
        "[{(" * 500,
    ]
    file = write_rows([row(text) for text in texts], tmp_path / "a.jsonl")
    assert [task["raw_prompt"][0]["content"] for task in RLHFDataset(file, None, DataConfig())] == texts


def test_maps_of_parquet_are_objects(tmp_path):
    call = pa.struct([("name", pa.string()), ("arguments", pa.map_(pa.string(), pa.int64()))])
    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.list_(pa.struct([("function", call)]))),
        ]
    )
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "get", "arguments": [("a", 3)]}}],
    }
    table = pa.table(
        {
            "prompt": pa.array([[ASKED, said, ASKED]], type=pa.list_(message)),
            "reward_model": [TRUTH],
            "extra_info": pa.array([[("x", 1)]], type=pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    task = only(RLHFDataset(tmp_path / "a.parquet", None, DataConfig()))
    assert task["extra_info"] == {"x": 1}
    assert task["raw_prompt"][1]["tool_calls"] == [{"function": {"name": "get", "arguments": {"a": 3}}}]


PRINTED = {
    "json": json.dumps,
    "json of json": lambda value: json.dumps(json.dumps(value)),
    "python": repr,
    "json of python": lambda value: json.dumps(repr(value)),
}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
@pytest.mark.parametrize("column", ["prompt", "extra_info", "reward_model"])
@pytest.mark.parametrize("printed", PRINTED)
def test_a_cell_may_be_what_json_or_python_prints(tmp_path, name, column, printed):
    plain = row(
        [{"role": "user", "content": 'it\'s \\frac{1}{2}\nor "0.5"'}, called({"a": 1.5, "b": [True]})]
    )
    plain["extra_info"] = {"index": 0, "it's": [1.5, True]}
    expected = only(RLHFDataset(write_rows([plain], tmp_path / name), None, DataConfig()))
    file = write_rows([plain | {column: PRINTED[printed](plain[column])}], tmp_path / name)
    read = only(RLHFDataset(file, None, DataConfig()))
    for field in ("raw_prompt", "reward_model", "extra_info"):
        assert read[field] == expected[field]


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'user', 'content': 'a'}\n {'role': 'assistant', 'content': 'b'}]",
        "array([{'role': 'user', 'content': 'a'}], dtype=object)",
        "[{'role': 'user', 'content': 'a' ...",
        '{"role": "user", "content": "a"}',
        '[{"role": "user", "content": "a"},]]',
    ],
)
def test_a_text_that_seems_to_hold_messages_is_no_question(tmp_path, text):
    file = write_rows([row("w"), row(text)], tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match=r"row 1: column 'prompt' .*expected chat messages"):
        RLHFDataset(file, None, DataConfig())


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (called('{"a": {"b": 3}}'), called({"a": {"b": 3}})),
        (called("{oops"), called("{oops")),
        (called("7"), called("7")),
        (called(json.dumps(json.dumps({"a": None}))), called({"a": None})),
        (called("{'a': 'it'}"), called({"a": "it"})),
        (json.dumps(called({"a": 3})), called({"a": 3})),
        ({**called({}), "tool_calls": [json.dumps(called({"a": 3})["tool_calls"][0])]}, called({"a": 3})),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": '{"a": 3}'}},
            called({"a": 3}),
        ),
        (
            {"role": "function", "name": "get", "content": "7"},
            {"role": "tool", "name": "get", "content": "7"},
        ),
        ({**called({}), "tool_calls": json.dumps(called({})["tool_calls"])}, called({})),
        ({**called({}), "content": None, "function_call": None}, called({})),
        ({**ASKED, "tool_calls": None, "name": None}, ASKED),
        ({**ASKED, "tool_calls": []}, ASKED),
        ({"role": "user", "content": [{"type": "text", "text": "w "}, {"type": "text", "text": "w"}]}, ASKED),
        (
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
            {"role": "assistant", "content": "", "reasoning_content": "hm"},
        ),
    ],
)
def test_a_message_is_read_in_the_one_form_that_templates_know(message, read):
    assert read_messages([message], "here") == [read]


def test_tools_may_be_json_text_and_each_of_them_too():
    tools = [{"type": "function", "function": {"name": "get"}}]
    assert (
        read_tools(tools, "")
        == read_tools(json.dumps(tools), "")
        == read_tools([json.dumps(tools[0])], "")
        == tools
    )
    assert read_tools("[]", "") is read_tools(None, "") is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"prompt": [{"role": "user", "content": None}]},
            r"row 1: column 'prompt' .*message 0: content must be text",
        ),
        ({"prompt": [{"role": "assistant", "content": None}]}, "message 0: content must be text"),
        (
            {"prompt": [ASKED, {"role": "user", "content": [{"type": "image_url"}]}]},
            "message 1: content must be text or parts of text",
        ),
        ({"prompt": [ASKED, {"role": "user", "content": 7}]}, "message 1: content must be text"),
        ({"prompt": [{"content": "w"}]}, "message 0: expected chat messages"),
        ({"prompt": [{"from": "human", "value": "w"}]}, "message 0: expected chat messages"),
        ({"prompt": ["w"]}, "message 0: expected chat messages"),
        ({"prompt": [{**called({}), "tool_calls": "none"}]}, "message 0: expected tool_calls as a list"),
        ({"prompt": "[]"}, "expected chat messages"),
        ({"prompt": " "}, "expected chat messages"),
        ({"prompt": None}, r"'prompt' \(data.prompt_key\) is empty"),
        (
            {"prompt": [{"role": "user", "content": "w \ud83d w"}]},
            r"message 0: 'w \\ud83d w' holds half of a surrogate pair",
        ),
        ({"prompt": [ASKED, called({"a": "\udc00"})]}, "message 1: .* half of a surrogate pair"),
        ({"reward_model": {"ground_truth": "\ud83d"}}, "ground_truth: .* half of a surrogate pair"),
        ({"reward_model": "4"}, "column 'reward_model': expected an object"),
        ({"reward_model": ["4"]}, "column 'reward_model': expected an object"),
        ({"extra_info": "{oops"}, "column 'extra_info': expected an object"),
    ],
)
def test_a_row_that_cannot_be_read_is_one_line_with_file_and_row(tmp_path, columns, message):
    file = write_rows([row([ASKED]), row([ASKED]) | columns], tmp_path / "a.jsonl")
    with pytest.raises(DatasetError, match=message) as error:
        RLHFDataset(file, None, DataConfig())
    assert str(error.value).startswith(f"{file}, row 1: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_another_encoding_is_read_or_named_with_file_and_line(tmp_path, encoding, name):
    rows = [row([ASKED], note="a"), row([ASKED], note="½")]
    text = (
        json.dumps(rows, ensure_ascii=False)
        if name == "a.json"
        else "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    )
    (tmp_path / name).write_text(text, encoding=encoding)
    if encoding == "utf-8-sig":
        assert read_rows(tmp_path / name) == rows
        return
    line = (
        ""
        if encoding == "utf-16-le"
        else rf", line {2 if name == 'a.jsonl' and 'utf' not in encoding else 1}: byte 0x.. is not UTF-8"
    )
    with pytest.raises(DatasetError, match=rf"{name}{line}"):
        RLHFDataset(tmp_path / name, None, DataConfig())


def test_a_json_file_may_hold_lines(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert read_rows(tmp_path / "a.json") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
            "no system role",
        ),
        ("{{ messages[0].role.missing.name }}", "has no attribute 'missing'"),
        ("{{ messages[0].role + 1 }}", "can only concatenate str"),
        ("{{ messages[1].content }}", "list object has no element 1"),
    ],
)
def test_messages_that_the_template_refuses_are_named_by_file_and_row(
    tmp_path, word_tokenizer, monkeypatch, template, cause
):
    monkeypatch.setattr(
        word_tokenizer, "chat_template", "{% if messages[0].content != 'fine' %}" + template + "{% endif %}"
    )
    good, bad = row([{"role": "user", "content": "fine"}]), row([{"role": "system", "content": "w"}])
    files = [
        write_rows([good, good], tmp_path / "a.jsonl"),
        write_rows([good, good, bad], tmp_path / "b.jsonl"),
    ]
    with pytest.raises(DatasetError, match=rf"b\.jsonl, row 2: the chat template cannot show .*: .*{cause}"):
        RLHFDataset(files, word_tokenizer, DataConfig())


def test_an_error_of_something_else_than_the_template_is_not_taken_for_one(
    tmp_path, word_tokenizer, monkeypatch
):
    def failing(*args, **kwargs):
        raise TypeError("of the tokenizer")

    monkeypatch.setattr(word_tokenizer, "apply_chat_template", failing)
    with pytest.raises(TypeError, match="of the tokenizer"):
        RLHFDataset(write_rows([row([ASKED])], tmp_path / "a.jsonl"), word_tokenizer, DataConfig())


def test_cells_of_parquet_are_what_json_has(tmp_path):
    day = datetime.datetime(2020, 1, 2, 3, 4)
    cells = {
        "prompt": [json.dumps(MESSAGES_OF_ANY_CASE).encode()],
        "truth": [{"ground_truth": Decimal("3.50"), "lines": [b"a", b"\xff"]}],
        "when": [{"a": day, "b": day.date(), "c": day.time()}],
        "passed": [datetime.timedelta(hours=1)],
    }
    pq.write_table(pa.table(cells), tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path / "rows.parquet")
    assert row == {
        "prompt": json.dumps(MESSAGES_OF_ANY_CASE),
        "truth": {"ground_truth": "3.50", "lines": ["a", b"\xff"]},
        "when": {"a": "2020-01-02T03:04:00", "b": "2020-01-02", "c": "03:04:00"},
        "passed": "1:00:00",
    }


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array(["a?"]), pa.array(["b?"])], names=["prompt", "prompt"])
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DatasetError, match="two columns are named 'prompt'"):
        read_rows(tmp_path / "rows.parquet")


MESSAGES_OF_ANY_CASE = [{"role": "System", "content": "s"}, {"role": "USER ", "content": "q?"}]


def test_the_case_of_a_role_does_not_count():
    assert [message["role"] for message in read_messages(MESSAGES_OF_ANY_CASE, "row 0")] == ["system", "user"]
    assert read_messages([{"role": "Critic", "content": "c"}], "row 0")[0]["role"] == "Critic"


PICTURE = {"bytes": b"\x89PNG\xff", "path": None}  # as `datasets` stores one
READERS = {
    "prompt": lambda file: RLHFDataset(file, None, DataConfig()),
    "messages": lambda file: read_chats([str(file)], "messages", "tools"),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("<image>Find x.", {"images": [PICTURE]}),  # verl's geo3k
        ("What is in <image 2>?", {"image": PICTURE}),
        ("<video>\nWho?", {"videos": ["a.mp4"]}),
        ("<audio>", {"audios": [{"array": [0.5], "sampling_rate": 1}]}),
    ],
)
def test_a_mark_that_stands_for_a_picture_of_another_column_is_refused(tmp_path, read, text, columns):
    """As text the model would be asked about what it cannot see."""
    asked = row([ASKED, {"role": "user", "content": text}, {"role": "assistant", "content": "w"}])
    rows = [asked | dict.fromkeys(columns), asked | columns]
    for each in rows:
        each[read] = each.pop("prompt")
    file = write_rows(rows, tmp_path / "a.parquet")
    with pytest.raises(
        DatasetError, match=f"row 1: column '{read}'.*'{next(iter(columns))}'.*read text"
    ) as error:
        READERS[read](file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", READERS)
def test_a_mark_without_anything_to_show_is_text(tmp_path, read):
    said = [{"role": "user", "content": "<image> is a tag of HTML"}, {"role": "assistant", "content": "w"}]
    rows = [row(said) | {read: said, "images": [], "audio": "x"}]
    READERS[read](write_rows(rows, tmp_path / "a.parquet"))


@pytest.mark.parametrize("column", ["images", "videos", "audios", "tools", "agent_name"])
def test_a_column_that_no_part_of_a_run_reads_is_named_once(tmp_path, caplog, column):
    rows = [row([ASKED]) | {column: value} for value in ([], ["x"], ["y"])]
    RLHFDataset(write_rows(rows, tmp_path / "a.jsonl"), None, DataConfig())
    assert [r.getMessage() for r in caplog.records if column in r.getMessage()] == [
        f"2 of 3 tasks have a column {column!r}, which is not read: agents have tools of their own, "
        "and models read text"
    ]


MIXED_TRUTHS = [
    "Paris",
    "7",
    "007",
    "null",
    "1e3",
    "2024-01-02",
    ["7", "8"],
    {"target": ["x"], "n": 3, "none": None},
]


@pytest.mark.parametrize("truth", MIXED_TRUTHS)
def test_cells_of_json_are_what_was_written(tmp_path, truth):
    """As `datasets` 5 stores columns of texts and lists: `"Paris"` with its quotes."""

    def cell(value):
        is_json = isinstance(value, str) and value in ("7", "007", "null", "1e3")
        return value if is_json else json.dumps(value)

    asked = [{"role": "user", "content": "7"}, {"role": "tool", "content": [{"type": "text", "text": "w"}]}]
    as_json, text = pa.json_(), pa.string()
    message = pa.struct([("role", text), ("content", as_json)])
    judged = pa.struct([("style", text), ("ground_truth", as_json)])
    storage = [{"role": m["role"], "content": cell(m["content"])} for m in asked]
    table = pa.table(
        {
            "prompt": pa.array([storage]).cast(pa.list_(message)),
            "reward_model": pa.array([{"style": "rule", "ground_truth": cell(truth)}]).cast(judged),
            "extra_info": pa.array([json.dumps({"index": 0, "a": {"b": None}})]).cast(as_json),
            "by_name": pa.array([[("a", '"x"')]], type=pa.map_(text, text)).cast(pa.map_(text, as_json)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    task = only(RLHFDataset(tmp_path / "a.parquet", None, DataConfig()))
    assert task["reward_model"]["ground_truth"] == truth
    assert [message["content"] for message in task["raw_prompt"]] == ["7", "w"]
    assert task["extra_info"] == {"index": 0, "a": {"b": None}} and task["by_name"] == {"a": "x"}


def test_what_datasets_writes_of_mixed_truths_is_read_back(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"n": n} for n, _ in enumerate(MIXED_TRUTHS)]).map(
        lambda each: row([ASKED], reward_model={"style": "rule", "ground_truth": MIXED_TRUTHS[each["n"]]})
    )
    made.to_parquet(tmp_path / "a.parquet")
    read = [
        task["reward_model"]["ground_truth"]
        for task in RLHFDataset(tmp_path / "a.parquet", None, DataConfig())
    ]
    assert read == MIXED_TRUTHS
