import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.task import task_from_row
from examples.data_preprocess import gsm8k, hf_sets, math_jsonl, search_sets
from verl.trainer.config import DataConfig
from verl.utils.dataset import DatasetError, RLHFDataset, read_rows, write_rows

ROOT = Path(__file__).parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"


def jsonl(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gsm8k_script_makes_tasks_that_the_trainer_reads(tmp_path):
    source = jsonl(
        tmp_path / "train.jsonl", {"question": "How much?", "answer": "10 * 108 = 1080\n#### 1,080"}
    )
    script = ROOT / "examples/data_preprocess/gsm8k.py"
    command = [sys.executable, str(script), "--input", str(source), "--output", str(tmp_path / "out")]
    subprocess.run(
        command, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}, cwd=tmp_path, capture_output=True
    )
    dataset = RLHFDataset(tmp_path / "out" / "train.parquet", None, DataConfig())
    task = task_from_row(dataset[0])
    assert (task.task_id, task.prompt, task.ground_truth) == ("openai/gsm8k:0", "How much?", "1080")
    assert dataset[0]["extra_info"] | {"question": "", "answer": ""} == {
        "split": "train",
        "index": 0,
        "question": "",
        "answer": "",
    }


@pytest.mark.parametrize("answer", ["no mark", "#### ", ""])
def test_gsm8k_row_without_answer_is_named(tmp_path, answer):
    source = jsonl(
        tmp_path / "train.jsonl", {"question": "q", "answer": "#### 1"}, {"question": "q", "answer": answer}
    )
    with pytest.raises(DatasetError, match=r"train\.jsonl, row 1"):
        gsm8k.convert(source)


@pytest.mark.needs_shared
@pytest.mark.skipif(not GSM8K.is_dir(), reason="no ../shared/data/gsm8k")
def test_real_gsm8k_converts_whole(tmp_path):
    files = gsm8k.main(
        ["--input", str(GSM8K / "train.jsonl"), str(GSM8K / "test.jsonl"), "--output", str(tmp_path)]
    )
    assert [len(read_rows(file)) for file in files] == [7473, 1319]


def test_math_jsonl_takes_the_answer_or_the_last_box(tmp_path):
    source = jsonl(
        tmp_path / "test.jsonl",
        {"problem": "a", "solution": r"\boxed{1}, no: \boxed{\frac{1}{2}}", "level": "Level 5"},
        {"question": "b", "answer": 7},
    )
    [file] = math_jsonl.main(["--input", str(source), "--output", str(tmp_path), "--data-source", "mine"])
    rows = read_rows(file)
    assert [row["reward_model"]["ground_truth"] for row in rows] == [r"\frac{1}{2}", "7"]
    assert rows[0]["extra_info"]["level"] == "Level 5" and rows[1]["data_source"] == "mine"
    with pytest.raises(DatasetError, match="row 0"):
        math_jsonl.convert(
            jsonl(tmp_path / "bad.jsonl", {"problem": "a", "solution": "forgot the box"}), "mine"
        )


def local_copies(folder: Path) -> None:
    """What the hub holds, in miniature: the columns of the real sets."""
    suffix = "\n\nLet's think step by step and output the final answer within \\boxed{}."
    prompt = [{"role": "user", "content": "Old question?" + suffix}]
    dapo = {
        "prompt": prompt,
        "reward_model": {"ground_truth": "34", "style": "rule"},
        "ability": "MATH",
        "data_source": "math_dapo",
    }
    write_rows([dapo, dapo], folder / "dapo_filter" / "train.parquet")
    math = [
        {"problem": f"Problem {i}", "solution": rf"\boxed{{{i}}}", "answer": str(i), "subject": "Algebra"}
        for i in range(60)
    ]
    write_rows(math, folder / "MATH-500" / "test.jsonl")
    write_rows(
        [{"problem": "AIME 24", "answer": "204", "solution": ""}], folder / "aime_2024" / "train.parquet"
    )
    write_rows(
        [{"problem": "AIME 25", "answer": 70, "problem_idx": 1}], folder / "aime_2025" / "train.parquet"
    )
    write_rows([{"problem": "AMC", "answer": 27.0}], folder / "AMC-23" / "train.parquet")
    write_rows(
        [{"problem": "Polaris", "answer": "21", "difficulty": "3/8"}],
        folder / "Polaris-Dataset-53K" / "train.parquet",
    )
    write_rows([{"problem": "Olympiad", "answer": ["2", "3"]}], folder / "olympiadbench" / "test.parquet")


def test_hub_sets_become_dr_mas_three_files(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    local_copies(tmp_path / "copies")
    files = hf_sets.main(["--output", str(tmp_path / "out"), "--local", str(tmp_path / "copies")])
    rows = {file.stem: read_rows(file) for file in files}
    assert {name: len(part) for name, part in rows.items()} == {"train": 1, "test_sampled": 52, "test": 64}
    assert task_from_row(rows["train"][0]).prompt == "Old question?"
    truths = {row["data_source"]: row["reward_model"]["ground_truth"] for row in rows["test"]}
    assert truths == {
        "math500": "59",
        "aime24": "204",
        "aime25": "70",
        "olympiadbench": "2, 3",
        "amc23": "27.0",
    }


def test_polaris_becomes_training_tasks(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    local_copies(tmp_path / "copies")
    [file] = hf_sets.main(
        ["--output", str(tmp_path / "out"), "--local", str(tmp_path / "copies"), "--sets", "polaris"]
    )
    [task] = [task_from_row(row) for row in read_rows(file)]
    assert (task.prompt, task.ground_truth, task.data_source) == ("Polaris", "21", "polaris")


def test_missing_local_copy_names_the_folder(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(DatasetError, match="aime_2024 is not a folder"):
        hf_sets.load("aime24", tmp_path)


def test_instructions_of_a_set_are_taken_off():
    dapo = (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
        "What is 1+1?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    assert hf_sets.bare_question(dapo) == "What is 1+1?"


def test_questions_of_nq_hotpotqa_and_search_r1_become_tasks_with_all_accepted_answers(tmp_path):
    nq = jsonl(
        tmp_path / "nq.jsonl",
        {"question": "who?", "answer": ["A", "B"]},
        {"question": "who?", "answer": ["C"]},
    )
    hotpot = tmp_path / "hotpotqa.json"
    hotpot.write_text(
        json.dumps([{"_id": "5", "question": "where?", "answer": "yes", "type": "bridge", "level": "hard"}])
    )
    prompt = [{"role": "user", "content": "Answer the given question. Question: when?"}]
    mixed = write_rows(
        [{"prompt": prompt, "reward_model": {"ground_truth": {"target": ["1984"]}}}],
        tmp_path / "search_r1.parquet",
    )
    arguments = [
        "--input",
        str(nq),
        str(hotpot),
        str(mixed),
        "--split",
        "test",
        "--output",
        str(tmp_path / "out"),
    ]
    [file] = search_sets.main(arguments)
    tasks = [task_from_row(row) for row in read_rows(file)]
    assert [(t.prompt, t.data_source) for t in tasks] == [
        ("who?", "nq"),
        ("where?", "hotpotqa"),
        ("when?", "search_r1"),
    ]
    assert [t.ground_truth["target"] for t in tasks] == [["A", "B"], ["yes"], ["1984"]]
    assert tasks[1].extra["level"] == "hard"
    assert len(RLHFDataset(file, None, DataConfig())) == 3


@pytest.mark.parametrize(
    ("row", "missing"), [({"answer": "A"}, "a 'question'"), ({"question": "q", "answer": []}, "an answer")]
)
def test_a_question_set_without_its_fields_names_the_row(tmp_path, row, missing):
    source = jsonl(tmp_path / "nq.jsonl", {"question": "who?", "answer": ["A"]}, row)
    with pytest.raises(DatasetError, match=rf"nq\.jsonl, row 1: lacks {missing}"):
        search_sets.main(["--input", str(source), "--output", str(tmp_path / "out")])


def test_a_question_set_whose_answers_cannot_be_read_names_row_and_column(tmp_path):
    source = jsonl(tmp_path / "nq.jsonl", {"question": "who?", "answer": [{"text": "Ada"}]})
    with pytest.raises(
        DatasetError, match=r"nq\.jsonl, row 0: answer: an accepted answer is \{'text': 'Ada'\}"
    ):
        search_sets.main(["--input", str(source), "--output", str(tmp_path / "out")])


def test_questions_that_no_answer_can_match_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    source = jsonl(
        tmp_path / "popqa.jsonl",
        {"question": "who?", "possible_answers": '["Ada"]'},
        {"question": "which?", "answer": "A"},
    )
    [file] = search_sets.main(["--input", str(source), "--output", str(tmp_path / "out")])
    assert [task_from_row(row).ground_truth["target"] for row in read_rows(file)] == [["Ada"]]
    assert (
        "1 rows kept; 1 dropped: its answers are only articles or punctuation and match nothing (first: row "
        "1)" in caplog.text
    )


def test_the_hub_gives_search_r1s_training_and_testing_sets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(repository, name, split):
        asked.append((repository, name, split))
        return [{"id": "1", "question": f"{name}?", "golden_answers": ["x"]}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    files = search_sets.main(["--hub", "--output", str(tmp_path)])
    rows = {file.stem: read_rows(file) for file in files}
    assert {split: [row["data_source"] for row in part] for split, part in rows.items()} == {
        "train": ["nq", "hotpotqa"],
        "test": ["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"],
    }
    assert ("RUC-NLPIR/FlashRAG_datasets", "hotpotqa", "dev") in asked


SOLUTIONS = [
    ({"solution": r"So $\boxed 5$."}, "5"),
    ({"solution": r"\fbox{5}"}, "5"),
    ({"solution": r"\boxed{\frac{1}{2}}"}, r"\frac{1}{2}"),
    ({"answer": "He has 3.\n#### 1,003"}, "1003"),
    ({"answer": "#### 3 "}, "3"),
    ({"answer": r"\boxed{7}"}, "7"),
    ({"final_answer": ["2", "3"]}, "2, 3"),
    ({"final_answer": '["2", "3"]'}, "2, 3"),
    ({"answer": "", "final_answer": "5"}, "5"),
    ({"answer": "[-2, 7]"}, "[-2, 7]"),
    ({"answer": "[[1,2],[3,4]]"}, "[[1,2],[3,4]]"),
    ({"answer": "#### (1, 2)"}, "(1, 2)"),
    ({"answer": "#### 1, 2"}, "1, 2"),
    ({"reward_model": {"ground_truth": "34"}}, "34"),
    ({"reward_model": {"ground_truth": ["3", "4"]}, "answer": []}, "3, 4"),
    ({"reward_model": {"ground_truth": "He has 34.\n#### 34"}}, "34"),
    ({"reward_model": '{"ground_truth": "34"}'}, "34"),
]


@pytest.mark.parametrize(("columns", "answer"), SOLUTIONS)
def test_answers_of_mathematics_are_found_in_the_forms_of_public_sets(tmp_path, columns, answer):
    for convert in (
        lambda rows: math_jsonl.convert(jsonl(tmp_path / "a.jsonl", *rows), "mine"),
        lambda rows: hf_sets.convert("dapo", rows),
    ):
        [row] = convert([{"problem": "How many?", **columns}])
        assert row["reward_model"]["ground_truth"] == answer


PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]


@pytest.mark.parametrize("prompt", [PROMPT, json.dumps(PROMPT)])
def test_a_prompt_may_be_messages_or_their_json_text(tmp_path, prompt):
    row = {"prompt": prompt, "reward_model": {"ground_truth": "34"}, "answer": None}
    converted = [
        math_jsonl.convert(jsonl(tmp_path / "a.jsonl", row), "mine"),
        hf_sets.convert("dapo", [row]),
        search_sets.convert(
            "here", [row | {"reward_model": json.dumps({"ground_truth": {"target": ["34"]}})}], "nq", "train"
        ),
    ]
    assert [rows[0]["prompt"] for rows in converted] == [[{"role": "user", "content": "How many?"}]] * 3


@pytest.mark.parametrize(
    ("columns", "targets"),
    [
        ({"answer": "New York", "answer_aliases": ["NYC", "New York"]}, ["New York", "NYC"]),
        ({"answer": "New York", "aliases": ["NYC"]}, ["New York", "NYC"]),
        ({"answer": {"value": "New York", "aliases": ["NYC"]}}, ["New York", "NYC"]),
        ({"answer": "New York", "answer_aliases": []}, ["New York"]),
        ({"answer": "New York", "answer_aliases": None}, ["New York"]),
    ],
)
def test_other_spellings_of_an_answer_are_accepted(columns, targets):
    [row] = search_sets.convert("here", [{"question": "where?", **columns}], "musique", "train")
    assert row["reward_model"]["ground_truth"]["target"] == targets


SCRIPTS = {
    "gsm8k": ([{"question": "q", "answer": "#### 1"}, {"question": "q"}], "no answer"),
    "math_jsonl": (
        [{"problem": "q", "answer": "1"}, {"problem": "q"}, {"problem": "p", "answer": "proof"}],
        "no answer",
    ),
    "search_sets": (
        [{"question": "q", "answer": "1"}, {"question": "p"}, {"question": "q", "answer": "2"}],
        "lacks an answer",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_kept_and_dropped_and_its_errors_are_one_line(
    tmp_path, name, monkeypatch, caplog
):
    caplog.set_level("INFO")
    rows, missing = SCRIPTS[name]
    source = jsonl(tmp_path / "a.jsonl", *rows)
    script = str(ROOT / f"examples/data_preprocess/{name}.py")
    argv = [script, "--input", str(source), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as error:
        runpy.run_path(script, run_name="__main__")
    assert str(error.value).startswith(f"error: {source}, row 1: {missing}") and "\n" not in str(error.value)
    monkeypatch.setattr(sys, "argv", [*argv, "--skip-incomplete"])
    runpy.run_path(script, run_name="__main__")
    assert f"{source}: 1 rows kept; 1 dropped: {missing}" in caplog.text
    others = {
        "math_jsonl": "1 dropped: the answer is 'proof' (first: row 2)",
        "search_sets": "1 dropped: the question is repeated",
    }
    assert others.get(name, "") in caplog.text


def test_answers_that_say_there_is_none_are_dropped_and_a_file_of_them_is_an_error(tmp_path):
    rows = [
        {"problem": str(n), "answer": answer}
        for n, answer in enumerate(["proof", "Proof.", "notfound", "N/A"])
    ]
    assert (
        len(
            math_jsonl.convert(
                jsonl(tmp_path / "a.jsonl", *rows, {"problem": "q", "answer": "a proof of 1"}), "mine"
            )
        )
        == 1
    )
    with pytest.raises(DatasetError, match="0 rows kept; 1 dropped: the answer is 'proof'"):
        math_jsonl.convert(jsonl(tmp_path / "a.jsonl", rows[0]), "mine")


@pytest.mark.parametrize("script", [math_jsonl, hf_sets])
def test_answers_that_only_their_own_text_matches_are_kept_and_counted(script, tmp_path, caplog):
    caplog.set_level("INFO")
    answers = [
        "7",
        r"\frac{1}{2}",
        "x=3",
        "Monday",
        "(1, 2)",
        "5 apples",
        "3:30 p.m.",
        "the line that meets $x$ twice",
        "x +",
        "1" * 1001,
    ]
    rows = [{"problem": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    made = (
        math_jsonl.convert(jsonl(tmp_path / "a.jsonl", *rows), "m")
        if script is math_jsonl
        else hf_sets.convert("dapo", rows)
    )
    assert len(made) == len(rows)
    assert (
        "10 rows kept; 4 of them have an answer that the grader cannot read" in caplog.text
        and "(first: row 6)" in caplog.text
    )
