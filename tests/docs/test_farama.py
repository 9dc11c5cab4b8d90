"""The page about outside environments: its commands train, and its tables name what there is."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from agent_system.workflows.farama import FaramaEnvOptions, FaramaOptions
from tests.docs.pages import blocks, pages, prose
from tests.docs.test_readme import run_block

PAGE = "agent_system/workflows/farama/README.md"


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["frozen_lake", "tictactoe"])
def test_its_commands_train_two_steps(
    name: str, tmp_path: Path, tiny_model_dir: Path, forked_python: str
) -> None:
    run_block(name, tmp_path, tiny_model_dir, forked_python)
    (file,) = (tmp_path / "outputs" / "verl-mas").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    named = prose(pages()[PAGE]).split("# Metrics\n")[1]
    unnamed = {key for line in lines for key in line if key.startswith("env/")} - {
        "env/return/player_1", "env/return/player_2", *(f"env/{word}" for word in named.split("`")[1::2]),
    }  # fmt: skip
    assert not unnamed


def test_every_run_block_of_a_page_is_run() -> None:
    marked = {block.marker for block in blocks("bash") if block.marker}
    assert marked == {
        "run: agent_spec", "run: draft_team", "run: frozen_lake", "run: graph_team", "run: openai_team", "run: tictactoe",
    }  # fmt: skip


def test_its_table_has_every_option() -> None:
    table = [line.split("`")[1] for line in pages()[PAGE].splitlines() if line.startswith("| `")]
    options = [f"agent.orchestra.farama.{f.name}" for f in fields(FaramaOptions)] + [
        f"env.params.{f.name}" for f in fields(FaramaEnvOptions)
    ]
    assert table == options
