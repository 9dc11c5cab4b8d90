"""The quick look at the keys of a command line says what the run would say, without what makes the run slow
to start.
"""

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


def test_nothing_heavy_is_imported() -> None:
    program = "import sys, verl.trainer.plan.check_keys; print({'torch', 'ray', 'transformers', 'tensordict', 'numpy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
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
