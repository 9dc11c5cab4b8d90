"""The program of docs/frameworks.md trains by the page's command."""

import json
from pathlib import Path

import pytest

from tests.docs.pages import pages
from tests.docs.test_readme import run_block


@pytest.mark.e2e
def test_the_program_of_the_page_trains_two_policies(
    tmp_path: Path, tiny_model_dir: Path, forked_python: str
) -> None:
    pytest.importorskip("openai")
    run_block("openai_team", tmp_path, tiny_model_dir, forked_python)
    (file,) = (tmp_path / "outputs" / "verl-mas").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for agent in ("writer", "editor"):
        assert sum(line[f"wg/{agent}/actor/grad_norm"] for line in lines[1:]) > 0
    named = pages()["docs/metrics.md"]
    assert [name for name in lines[1] if name.startswith("gateway/") and name not in named] == []
