"""The team of docs/graph.md trains by the page's command, and its program runs."""

import json
from pathlib import Path

import pytest

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import Team
from tests.docs.pages import blocks
from tests.docs.test_readme import run_block

PAGE = "docs/graph.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the team of the page."""
    block, *others = [b for b in blocks("yaml") if b.page == PAGE]
    assert block.marker == "file: team.yaml" and [b.marker for b in others] == ["file: delegation.yaml"]
    (tmp_path / "team.yaml").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.e2e
def test_the_team_of_the_page_trains_two_policies(
    folder: Path, tiny_model_dir: Path, forked_python: str
) -> None:
    run_block("graph_team", folder, tiny_model_dir, forked_python)
    file = folder / "outputs" / "verl-mas" / "graph" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for agent in ("solver_agent", "verifier_agent"):
        assert f"wg/{agent}/actor/grad_norm" in lines[2]


def test_the_program_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [b for b in blocks("python") if b.page == PAGE]
    exec(compile(block.text, PAGE, "exec"), {})
    calls, key, chart = capsys.readouterr().out.split("\n", 2)
    assert (calls, len(key)) == ("8", 16) and chart.startswith("flowchart TD")
    assert Team.load(folder / "team.json").key() == key


def test_the_team_with_sub_agents_of_the_page_is_read_and_makes_as_many_calls_as_the_page_says() -> None:
    (text,) = [b.text for b in blocks("yaml") if b.page == PAGE and b.marker == "file: delegation.yaml"]
    assert Team.parse(text).calls == 1 + 4 + 16 + 1


def test_the_error_of_the_page_is_what_is_said() -> None:
    from tests.agent_system.workflows.graph.conftest import PAIR

    (block,) = [b for b in blocks("text") if b.page == PAGE]
    with pytest.raises(AgentSystemError) as error:
        Team.parse(PAIR.replace("call: Verifier Agent", "call: Verifer Agent"), name="team.yaml")
    assert str(error.value) == block.text.strip()
