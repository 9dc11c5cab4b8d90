"""`verl-mas check` says what a training says before it reads a model: both make the same checks."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.house.source import ROOT

TEAM = """team: 1
agents:
  Adviser: {prompt: "{env_prompt} Advise."}
  Operator: {prompt: "{env_prompt} {team_context} Answer."}
do:
  - {call: Adviser, id: advice}
  - {call: Operator, id: act}
return: act
"""
GRAPH = {
    "agent.orchestra_type": "graph",
    "agent.orchestra.graph.file": "team.yaml",
    "agent.agent_ids": "[Adviser,Operator]",
    "actor_rollout_ref.model.path": "gone/model",
    "env.env_name": "math",
    "data.train_files": "tasks.jsonl",
    "data.train_batch_size": "2",
    "trainer.controller": "local",
    "trainer.device": "cpu",
    "trainer.logger": "[console]",
}
MATH = GRAPH | {"agent.orchestra_type": "math", "agent.agent_ids": "[Solver Agent,Verifier Agent]"}
del MATH["agent.orchestra.graph.file"]
GATE = GRAPH | {"agent.orchestra_type": "gateway", "agent.agent_ids": "[a]"}
del GATE["agent.orchestra.graph.file"]
# A command, and a part of what is wrong with it.
WRONG: list[tuple[dict[str, str], str]] = [
    (GRAPH | {"agent.orchestra.graph.file": "gone.yaml"}, "error: gone.yaml: cannot be read"),
    (GRAPH | {"agent.orchestra.graph.file": "step.yaml"}, "error: step.yaml:6:5 do[0]: expected a step"),
    (GRAPH | {"agent.orchestra.graph.files": "[team.yaml]"}, "has a file and files"),
    (GRAPH | {"agent.agent_ids": "[Adviser,Operatr]"}, "agent.agent_ids has Operatr, which the file has not"),
    (GATE | {"agent.team": "gone_team:team"}, "error: agent.team=gone_team:team: "),
    (GATE | {"agent.team": "gate:tam"}, "error: agent.team=gate:tam: "),
    (MATH | {"agent.orchestra.math.max_lop_num": "3"}, "max_lop_num is not an option; did you mean "),
    (MATH | {"env.params.verdict_rewrd": "3"}, "error: env.params.verdict_rewrd is not an option"),
    (MATH | {"sandbox.min_level": "namespaces"}, "sandbox.min_level has no effect"),
    (MATH | {"data.train_batch_size": "40"}, "error: 8 tasks do not fill one batch"),
    (MATH | {"trainer.logger": "[console,wandb]"}, "error: trainer.logger has 'wandb', but "),
    (MATH | {"trainer.n_gpus_per_node": "2"}, "error: trainer.controller=local runs one rank"),
    (MATH | {"trainer.device": "cuda"}, "error: trainer.device=cuda, but torch sees no GPU"),
    (
        MATH | {"agent.plugins": "[thremo]"},
        "agent.plugins names the module 'thremo', which Python cannot find",
    ),
    (MATH | {"agent.plugins": "[broken]"}, "broken.py, line 2: "),
]
RIGHT = [GRAPH, MATH, GATE | {"agent.team": "gate:team"}]
# Each command line in a process of its own, forked from one that has imported the checks: what it writes
# to stdout and stderr together.
PROGRAM = """
import contextlib, io, json, os, sys
sys.path.insert(0, os.getcwd())
from agent_system.launch import first_checks
lines = json.loads(sys.argv[1])
# What a check imports is imported once, by that of a right command.
sys.argv[1:] = json.loads(sys.argv[2])
with contextlib.redirect_stdout(io.StringIO()):
    first_checks.main()
for arguments in lines:
    if arguments[:1] == ["agent.orchestra_type=gateway"] or "trainer.device=cuda" in arguments:
        import agent_system.rollout  # with torch, once for those that need it
    reader, writer = os.pipe()
    if not os.fork():
        for stream in (1, 2):
            os.dup2(writer, stream)
        sys.argv[1:] = arguments
        try:
            first_checks.main()
            print("heavy:", sorted({"torch", "ray", "transformers"} & {*sys.modules}), flush=True)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        print(json.dumps(said.read()), flush=True)
    os.wait()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `verl-mas check` writes for each command."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "team.yaml").write_text(TEAM)
    (folder / "step.yaml").write_text(TEAM.replace("{call: Adviser", "{cal: Adviser"))
    (folder / "tasks.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n' * 8)
    (folder / "gate.py").write_text("async def team(task, session):\n    return ''\n")
    (folder / "broken.py").write_text("x = 1\ndef f(:\n    pass\n")
    before = sorted(each.name for each in folder.iterdir())
    commands = [*(command for command, _ in WRONG), *RIGHT, RIGHT[1] | {"env.rollout.n": "1"}]
    # those that need torch last
    commands.sort(key=lambda c: c["agent.orchestra_type"] == "gateway" or c["trainer.device"] == "cuda")
    lines = [words_of(command) for command in commands]
    lines[:0] = [["--help"], [*lines[0], "--config", "foo.yaml"]]
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, json.dumps(lines), json.dumps(words_of(MATH))],
        capture_output=True, text=True, timeout=240, cwd=folder,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in folder.iterdir()) == before, "nothing is written"
    said: list[Any] = list(map(json.loads, done.stdout.splitlines()))
    return {" ".join(line): text for line, text in zip(lines, said, strict=True)}


def words_of(command: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in command.items()]


def line_of(command: dict[str, str]) -> str:
    return " ".join(words_of(command))


@pytest.mark.parametrize(("command", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_a_run_refuses_before_its_models_is_refused(
    command: dict[str, str], said: str, written: dict[str, str]
) -> None:
    errors = [line for line in written[line_of(command)].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and said in errors[0], written[line_of(command)]
    assert "Traceback" not in written[line_of(command)]


@pytest.mark.parametrize("command", RIGHT, ids=lambda command: command["agent.orchestra_type"])
def test_what_is_right_is_said_with_what_was_not_checked(
    command: dict[str, str], written: dict[str, str]
) -> None:
    *_, verdict, heavy = written[line_of(command)].splitlines()
    assert verdict.startswith("keys, values, names, the team and data files are right; not checked: models")
    # a program's orchestra has the server of its requests, and that the episodes
    assert heavy == "heavy: []" or command["agent.orchestra_type"] == "gateway"


def test_the_warnings_of_a_run_are_given(written: dict[str, str]) -> None:
    assert "WARNING verl.trainer.plan.group_checks: " in written[line_of(MATH | {"env.rollout.n": "1"})]


def test_help_is_help_and_an_option_of_hydra_is_named(written: dict[str, str]) -> None:
    assert written["--help"].startswith("usage: verl-mas check key=value ...\n")
    (text,) = [text for line, text in written.items() if line.endswith("--config foo.yaml")]
    assert text.startswith("error: not checked: --config is an option of Hydra")
