"""Every command of a page is run: here when it is cheap, else by what `ELSEWHERE` names."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agent_system.launch.before_models import check_team
from tests.docs.pages import blocks, code_spans, commands, first_column, pages
from tests.docs.test_readme import KEY, environment
from tests.house.source import ROOT
from verl.trainer.config import RunConfig
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults

SERVER = "python -m agent_system.workflows.search.world.server"
REPORT = "verl-mas report outputs/verl-mas/math_seed"
CODE_SETS = "python examples/data_preprocess/code_sets.py"
EVOLVE = (
    "verl-mas evolve evolve.start=[start.yaml] evolve.parts=[parts.yaml] evolve.budget_tokens=2000000 "
    "actor_rollout_ref.model.path=MODEL env.env_name=math data.train_files=train.parquet "
    "data.val_files=test.parquet"
)
TRAINED = (
    "verl-mas evolve evolve.start=[start.yaml] evolve.parts=[parts.yaml] evolve.train_steps=30 "
    "agent.specialization=lora actor_rollout_ref.model.path=MODEL env.env_name=math "
    "data.train_files=train.parquet data.val_files=test.parquet"
)
# Command to what runs it; a path is a test or a script that exists.
ELSEWHERE = {
    "bash scripts/test.sh": ".ci/run",
    "bash scripts/test.sh fast": "tests/house/test_scripts.py",
    "bash scripts/test.sh fuzz": "tests/house/test_scripts.py",
    "bash scripts/setup.sh cpu-vllm": "tests/house/test_scripts.py",
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu bash scripts/setup.sh cpu-vllm": "tests/house/test_scripts.py",
    f"{SERVER} --corpus wiki.jsonl --port 8000": "tests/agent_system/workflows/search/test_server.py",
    "bash scripts/test.sh tests/agent_system -k prompt": ".ci/run",
    "verl-mas check-model PATH": "tests/models/test_trainer.py",
    "python -m agent_system.new my_flow": "tests/agent_system/new/test_new.py",
    "python -m pytest my_flow": "tests/agent_system/new/test_new.py",
    "bash my_flow/train.sh": "tests/agent_system/new/test_new.py",
    f"{CODE_SETS} --set human_eval --input HumanEval.jsonl --output data/human_eval": "tests/agent_system/workflows/code/test_prepare.py",
    f"{CODE_SETS} --set apps --input train.jsonl test.jsonl --output data/apps": "tests/agent_system/workflows/code/test_prepare.py",
    '.venv/bin/python -m pytest tests/trainer -m "not ray"': "scripts/test.sh",
    "python -m verl.model_merger --checkpoint outputs/verl-mas/math_seed0 --out exported": "tests/e2e/test_serve.py",
    'python -m agent_system.serve outputs/verl-mas/math_seed0 "What is 3 + 4?"': "tests/e2e/test_serve.py",
    "python -m agent_system.serve outputs/verl-mas/math_seed0 --greedy": "tests/e2e/test_serve.py",
    "python -m agent_system.serve outputs/verl-mas/openai_team --openai": "tests/e2e/test_serve_openai.py",
    f"{REPORT}0": "tests/report/test_cli.py",
    f"{REPORT}0 outputs/verl-mas/math_seed1 --out seeds.html": "tests/report/test_cli.py",
    f"{REPORT}0 --check --json": "tests/report/test_cli.py",
    "verl-mas report RUN --out report.html --check": "tests/report/test_cli.py",
    "verl-mas watch outputs/verl-mas/math_seed0": "tests/report/test_watch.py",
    "ssh -L 8377:127.0.0.1:8377 me@node verl-mas watch RUN": "tests/report/test_watch.py",
    "python recipe/at_grpo/replies.py --seeds 0 1 2": "tests/recipe/test_at_grpo.py",
    "python -m venv vf && vf/bin/pip install 'verifiers==0.3.1' reasoning-gym": "tests/examples/test_verifiers.py",
    "vf/bin/python examples/verifiers/play.py rows my-env --output tasks.jsonl": "tests/examples/test_verifiers.py",
    "verl-mas audit outputs/verl-mas/math_seed0": "tests/e2e/test_audit.py",
    "bash examples/run_smollm2.sh": "tests/e2e/test_smollm2.py",
    "bash examples/run_evolve.sh": "tests/e2e/test_evolve.py",
    EVOLVE: "tests/e2e/test_evolve.py",
    TRAINED: "tests/e2e/test_evolve_training.py",
}
SCRIPT = "bash examples/run_"
TEAMS = {
    "math": ["Solver Agent", "Verifier Agent"],
    "math_tool": ["Reasoner Agent", "Tool Agent"],
    "code": ["Coder Agent", "Tester Agent"],
    "search": ["Verifier Agent", "Search Agent", "Answer Agent"],
}
WORKFLOW_OF = {"async": "search"}  # of a script with another name
GSM8K = "python examples/data_preprocess/gsm8k.py"
PPO = "python -m verl.trainer.main_ppo"
SFT = "python -m verl.trainer.sft_trainer"
BENCHMARK = "python benchmarks/"
ALL_LEVELS = "bash scripts/test.sh --all-levels"
# Stands for the Python of `.venv`: prepares nothing, trains nothing, writes down what it was asked to train.
STAND_IN = """#!/usr/bin/env bash
if [[ $2 == examples.embedded.prepare ]]; then echo embedded; exit; fi
shift 2; printf '%s\\0' "$@" > asked
"""


def having(text: str) -> list[str]:
    """The distinct commands that contain a text."""
    return sorted({command for _, command in commands() if text in command})


def test_every_command_is_run_by_some_test() -> None:
    cheap = [
        *having(SCRIPT),
        *having(GSM8K),
        *having(SFT),
        *having(PPO),
        *having(ALL_LEVELS),
        *having(BENCHMARK),
    ]
    homeless = [
        (page, command) for page, command in commands() if command not in cheap and command not in ELSEWHERE
    ]
    assert homeless == [], "run it in this file, or say in ELSEWHERE what does"
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).is_file()] == []


def asked_for(command: str, tmp_path: Path) -> tuple[list[str], RunConfig]:
    """The keys that a script of `examples/` gives to the trainer, and the config that they make."""
    from verl.trainer.plan.command_line import compose_config

    for name in ("examples", "scripts", ".venv/bin", "embedded", "data/gsm8k", "data/search_r1", "data/apps"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for script in (ROOT / "examples").glob("*.sh"):
        shutil.copy(script, tmp_path / "examples")
    (tmp_path / "scripts" / "setup.sh").touch()
    (tmp_path / ".venv" / "bin" / "activate").write_text(
        f"PATH={shlex.quote(str(tmp_path))}/.venv/bin:$PATH\n"
    )
    (tmp_path / ".venv" / "bin" / "python").write_text(STAND_IN)
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    for folder in ("embedded", "data/gsm8k", "data/search_r1", "data/apps"):
        for split in ("train", "test"):
            (tmp_path / folder / f"{split}.parquet").touch()
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=240)
    overrides = (tmp_path / "asked").read_text().split("\0")[:-1]
    return overrides, compose_config(overrides)


@pytest.mark.parametrize("command", [command for command in having(SCRIPT) if command not in ELSEWHERE])
def test_a_script_asks_for_a_run_whose_keys_exist_and_agree(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, config = asked_for(command, tmp_path)
    monkeypatch.setenv("JUDGE_KEY", "of the page")
    resolve_defaults(config)
    check_team(config)
    resolve(config)
    script = re.search(r"examples/run_(\w+)\.sh", command)[1]
    workflow = WORKFLOW_OF.get(script, script)
    alone = config.agent.orchestra_type == "single"
    assert config.agent.agent_ids == (
        ["Single Agent"] if alone else TEAMS.get(workflow, ["Tool Agent", "Executor Agent"])
    )
    assert (config.agent.orchestra_type, config.env.env_name) == ("single" if alone else workflow, workflow)
    assert config.algorithm.preset == (None if workflow in ("math", "search") else "at_grpo")
    assert config.trainer.val_only == (" eval" in command)
    given = dict(word.split("=", 1) for word in shlex.split(command) if re.match(r"(MODEL_PATH|DATA)=", word))
    assert config.actor_rollout_ref.model.path == given.get("MODEL_PATH", "embedded/model")
    assert config.data.train_files == f"{given.get('DATA', 'embedded')}/train.parquet"
    for override in shlex.split(command)[2:]:
        assert "=" not in override or override in overrides or override.startswith(("MODEL_PATH", "DATA"))


def overrides_in_prose() -> list[list[str]]:
    """The overrides of every code span that has nothing else, without those that stand for others (`key=n`,
    `key=<name>`, `key=...`).
    """
    spans = {span.replace("\\|", "|") for text in pages().values() for span in code_spans(text)}
    found = [re.split(r" (?=[a-z_.]+=)", span) for span in spans if re.match(rf"{KEY.pattern}=", span)]
    return sorted(f for f in found if not any(re.search(r"=(n|C|name)$|<\w+>|\.\.\.|\|", o) for o in f))


def test_overrides_in_prose_are_taken_from_the_command_line() -> None:
    """As many at once as are about different keys: composing takes much longer than reading another
    override.
    """
    from verl.trainer.plan.command_line import compose_config, key_of

    def apart(one: str, other: str) -> bool:
        names = f"{key_of(one)}.", f"{key_of(other)}."
        return not names[0].startswith(names[1]) and not names[1].startswith(names[0])

    assert len(overrides_in_prose()) > 60
    lines: list[list[str]] = []
    for overrides in overrides_in_prose():
        line = next(
            (line for line in lines if all(apart(o, other) for o in overrides for other in line)), None
        )
        if line is None:
            lines.append(line := [])
        line += overrides
    for line in lines:
        compose_config(line)


def test_commands_stand_in_bash_blocks_where_they_are_run() -> None:
    shown = [block for language in ("", "text", "console", "sh", "shell") for block in blocks(language)]
    assert [
        (block.page, block.text) for block in shown if KEY.search(block.text) or "python -m" in block.text
    ] == []


@pytest.mark.parametrize("command", having(PPO))
def test_a_command_of_verl_asks_for_one_agent_that_trains(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.plan.command_line import compose_config

    monkeypatch.chdir(tmp_path)
    Path("data/gsm8k").mkdir(parents=True)
    for split in ("train", "test"):
        Path(f"data/gsm8k/{split}.parquet").touch()
    config = compose_config(shlex.split(command.removeprefix(PPO)))
    resolve_defaults(config)
    check_team(config)
    resolve(config)
    assert (config.agent.orchestra_type, config.agent.agent_ids) == ("single", ["Single Agent"])
    assert (config.env.rollout.n, config.algorithm.adv_estimator, config.trainer.logger) == (
        5,
        "grpo",
        ["console"],
    )


@pytest.mark.parametrize("command", having(GSM8K))
def test_gsm8k_is_converted(command: str, tmp_path: Path, forked_python: str) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(
            json.dumps({"question": "1+1?", "answer": "1+1=2\n#### 2"}) + "\n"
        )
    subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(forked_python), check=True, timeout=120
    )
    assert sorted(p.name for p in (tmp_path / "data" / "gsm8k").iterdir()) == [
        "test.parquet",
        "train.parquet",
    ]


@pytest.mark.parametrize("command", having(SFT))
def test_sft_trains(
    command: str, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.sft_trainer import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sft_trainer", *shlex.split(command.removeprefix(SFT))])
    Path("MODEL").symlink_to(tiny_model_dir)
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    Path("demos.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 32)
    main()
    assert Path("OUT", "config.json").is_file()


@pytest.mark.parametrize("command", having(ALL_LEVELS))
def test_all_levels_are_each_with_every_engine_on_every_controller(command: str, forked_python: str) -> None:
    """The tests are only listed: running them takes hours."""
    from tests.e2e.teams import LEVELS

    listing = [forked_python, "-m", "pytest", "tests/e2e", *shlex.split(command)[2:], "--collect-only"]
    said = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    cases = re.findall(r"export_as_they_are\[(\w+)-(hf|vllm)-(local|ray)\]", said)
    assert sorted(cases) == sorted(itertools.product(LEVELS, ("hf", "vllm"), ("local", "ray")))


def test_benchmarks_on_a_gpu_take_their_options_and_without_one_say_so_in_a_line(forked_python: str) -> None:
    assert len(having(BENCHMARK)) == 3
    for command in having(BENCHMARK):
        said = subprocess.run(
            [forked_python, *shlex.split(command)[1:]], cwd=ROOT,
            env=environment(forked_python, CUDA_VISIBLE_DEVICES=""), text=True,
            capture_output=True, check=False, timeout=120,
        )  # fmt: skip
        found = f"--device cuda needs 1 CUDA GPU, but torch {torch.__version__} sees 0; use --device cpu, or"
        assert (
            (said.returncode, said.stdout) == (1, "")
            and said.stderr.startswith(found)
            and said.stderr.count("\n") == 1
        ), said.stderr


def test_the_variables_of_the_scripts_are_those_they_read() -> None:
    scripts = "".join(path.read_text() for path in (ROOT / "examples").glob("*.sh"))
    named = first_column(pages()["examples/README.md"], "Examples")
    assert sorted(named) == sorted(set(re.findall(r"\$\{([A-Z_]+):?[-+]", scripts)) - {"EMBEDDED"})
