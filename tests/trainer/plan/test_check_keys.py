"""The quick look at the keys of a command line says what the run would say, without what makes the run slow
to start.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from agent_system.launch import train
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys
from verl.trainer.plan import check_keys

WRONG = [
    ["trainer.loger=[jsonl]"],
    ["data.train_batch_size=many"],
    ["algorithm.preset=dr_mass"],
    ["trainer.device=cpu", "agent.orchestra=[1"],
    ["actor_rollout_ref.actor.optim.lr=[1e-6]"],
]


@pytest.mark.parametrize("overrides", WRONG, ids=" ".join)
def test_what_is_wrong_is_said_as_by_the_run(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    said = []
    for program in (check_keys, train):
        monkeypatch.setattr(sys, "argv", ["program", *overrides])
        with pytest.raises(SystemExit) as ended:
            program.cli()
        said.append((ended.value.code, capsys.readouterr().err))
    assert said[0] == said[1]
    assert said[0][0] == 1
    assert said[0][1].startswith("error: ")
    assert said[0][1].count("\n") == 1


def test_right_keys_and_options_of_hydra_pass(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "program",
            "--cfg",
            "job",
            "--resolve",
            "env.params.mine=3",
            "algorithm.preset=at_grpo",
            "trainer.device=cpu",
        ],
    )
    check_keys.cli()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name, key in keys(RunConfig).items() if key.default == {}])
def test_a_mapping_takes_new_keys_one_by_one_and_as_a_whole(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    value = (
        "{a: 1}"
        if keys(RunConfig)[name].type == dict[str, dict[str, Any]]
        else "file:name"
        if name.endswith("functions")
        else str(keys(RunConfig)[name].ge or 1)
    )
    for override in (
        f"{name}={{one: {value}, two: {value}}}",
        f"{name}.one={value}",
        f"++{name}.one={value}",
        f"{name}={{}}",
    ):
        monkeypatch.setattr(sys, "argv", ["program", override])
        check_keys.cli()
    assert capsys.readouterr() == ("", "")


TEAM = [
    "agent.orchestra_type=math",
    "agent.agent_ids=[Solver Agent,Verifier Agent]",
    "actor_rollout_ref.model.path=owner/model",
]
# Each command line in a process of its own, forked from one that has imported the checks alone; what it
# writes is in a file for each stream.
FIRST_CHECKS = """
import contextlib, io, json, os, sys
from agent_system.launch import first_checks
lines = json.loads(sys.argv[1])
# What a check imports is imported once, by that of a right command.
sys.argv[1:] = json.loads(sys.argv[2])
with contextlib.redirect_stdout(io.StringIO()):
    first_checks.main()
for number, sys.argv[1:] in enumerate(lines):
    if os.fork():
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        continue
    for stream in (1, 2):
        os.dup2(os.open(f"{number}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
    try:
        first_checks.main()
    finally:
        print({"torch", "ray", "transformers", "tensordict", "pandas"} & {*sys.modules})
    sys.exit()
"""
FIRST: list[tuple[list[str], str]] = [
    (["agent.agent_ids=[Solver Agent,Judge]"], "error: no agent named 'Judge'"),
    (["env.env_name=maths"], "error: no environment named 'maths'"),
    (["data.train_files=[]"], "error: no data files: set data.train_files"),
    (["data.train_files=gone.parquet"], "error: no such data file: gone.parquet"),
    (["data.val_files=[tasks.jsonl,gone.parquet]"], "error: no such data file: gone.parquet"),
    (["data.train_files=tasks.csv"], "error: tasks.csv: suffix '.csv' is not one of"),
    (["trainer.val_only=true", "data.train_files=gone.parquet", "data.val_files=tasks.jsonl"], ""),
    (["trainer.val_only=true"], "error: trainer.val_only=true needs data.val_files"),
    (["algorithm.clip_advantages=1"], "error: unknown key algorithm.clip_advantages"),
    (["agent.plugins=[no.such.module]"], "error: agent.plugins names the module 'no.such.module', which "),
    (["--cfg", "job"], "error: not checked: "),
    ([], ""),
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit status and what was written to both streams for each command line of `FIRST`."""
    folder = tmp_path_factory.mktemp("checked")
    for name in ("tasks.jsonl", "tasks.csv"):
        (folder / name).write_text("{}\n")
    lines = []
    for more, _ in FIRST:
        arguments = [*TEAM, "data.train_files=tasks.jsonl", "data.train_batch_size=1", *more]
        lines.append([*{word.partition("=")[0]: word for word in arguments}.values()])
    right = next(number for number, (_, said) in enumerate(FIRST) if not said)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CHECKS, json.dumps(lines), json.dumps(lines[right])],
        capture_output=True, text=True, timeout=240, cwd=folder, check=True,
    )  # fmt: skip
    return {
        " ".join(more): (int(status), *((folder / f"{number}.{stream}").read_text() for stream in (1, 2)))
        for number, ((more, _), status) in enumerate(zip(FIRST, done.stdout.split(), strict=True))
    }


@pytest.mark.parametrize(("more", "said"), FIRST, ids=" ".join)
def test_names_and_files_are_checked_before_torch_is_imported(
    more: list[str], said: str, checked: dict[str, tuple[int, str, str]]
) -> None:
    status, out, error = checked[" ".join(more)]
    right = (
        ""
        if said
        else "keys, values, names, the team and data files are right; not checked: models and whether they "
        "fit the memory, the length of prompts, the devices and CPUs of Ray's nodes\n"
    )
    assert status == bool(said)
    # The names of all environments are those of their modules, some of which need torch.
    assert out == f"{right}set()\n" or "no environment" in said
    assert error.startswith(said) and error.count("\n") == bool(said)


def test_nothing_heavy_is_imported() -> None:
    program = "import sys, verl.trainer.plan.check_keys; print({'torch', 'ray', 'transformers', 'tensordict', 'numpy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "set()\n"


def test_the_protocol_is_imported_without_torch_and_complete() -> None:
    program = """
import sys
import verl.protocol, verl.protocol.generate, agent_system
assert "torch" not in sys.modules
from verl.protocol import *
assert all(name in dir(verl.protocol) and getattr(verl.protocol, name) is not None for name in verl.protocol.__all__)
assert DataProto is verl.DataProto
try:
    verl.protocol.DataPrto
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("module 'verl.protocol' has no attribute 'DataPrto'\n", 0), (
        done.stderr
    )
