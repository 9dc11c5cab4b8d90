"""The scripts of `examples/` for real, made small: prepare, train two policies, evaluate, then evaluate the
checkpoint.

Math trains by the documented command as it stands, on Ray and with the `.venv` of this checkout; the rest is
forked (tests/forked.py).
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_system.launch.before_models import check_team
from agent_system.workflows.search import SearchEnvOptions
from examples.embedded.worlds import WORLDS
from tests.docs.test_commands import asked_for
from tests.house.source import ROOT
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.presets import describe_preset

pytestmark = pytest.mark.spread
SMALL = [
    "trainer.total_training_steps=2",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=4",
    "env.rollout.n=2",
    "env.rollout.val_n=1",
]

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"
SCRIPTS = {
    "code": ("coder_agent", "tester_agent"),
    "math": ("solver_agent", "verifier_agent"),
    "math_tool": ("reasoner_agent", "tool_agent"),
    "search": ("answer_agent", "search_agent", "verifier_agent"),
    "plan_path": ("executor_agent", "tool_agent"),
    "sokoban": ("executor_agent", "tool_agent"),
    "sudoku": ("executor_agent", "tool_agent"),
}
POLICIES = SCRIPTS | {"async": SCRIPTS["search"]}  # whose settings for a real model are those of search


def run(
    folder: Path, name: str, tmp_path: Path, *arguments: str, within_s: float = 240, **variables: str
) -> subprocess.CompletedProcess[str]:
    hidden = ("MODEL_PATH", "DATA", "EXPERIMENT", "SEED")
    small = {"EMBEDDED_DIR": str(tmp_path / "embedded"), "DEMOS": "96"}
    env = {k: v for k, v in os.environ.items() if k not in hidden} | small | variables
    command = [
        "bash",
        name if "/" in name else f"examples/run_{name}.sh",
        *arguments,
        f"trainer.default_local_dir={tmp_path / 'run'}",
    ]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=within_s, check=False
    )


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variable for one folder of tasks and warm starts in all test processes: what a script has prepared,
    the next one finds.
    """
    base = tmp_path_factory.getbasetemp()
    return {"EMBEDDED_DIR": str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "embedded")}


def arguments_of(block: str) -> list[str]:
    """What stands between `ARGS+=(` and `)`."""
    return block.split("ARGS+=(\n", 1)[1].split("\n  )\n", 1)[0].split()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_settings_for_a_real_model_turn_thinking_off_and_leave_time_for_long_replies(name: str) -> None:
    from verl.trainer.plan.command_line import compose_config

    script, common = (
        (ROOT / "examples" / file).read_text(encoding="utf-8") for file in (f"run_{name}.sh", "common.sh")
    )
    real = arguments_of(common.split("real_model() {", 1)[1]) + arguments_of(
        script.split("  real_model\n", 1)[1]
    )
    config = compose_config(real)
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert (config.rollout.call_timeout_s, config.rollout.episode_timeout_s) == (1800, 3600)
    assert config.data.max_response_length == 1024


def test_a_search_server_that_is_named_takes_the_place_of_the_corpus_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "search").mkdir(parents=True)
    for name in ("train.parquet", "test.parquet", "corpus.jsonl"):
        (tmp_path / "data" / "search" / name).touch()
    command = "MODEL_PATH=Qwen/Qwen3-4B DATA=data/search bash examples/run_search.sh"
    _, config = asked_for(f"{command} env.params.url=http://127.0.0.1:8000", tmp_path)
    assert config.env.params == {"url": "http://127.0.0.1:8000"}
    SearchEnvOptions(**config.env.params).check_source()
    shutil.rmtree(tmp_path / "examples")
    _, config = asked_for(command, tmp_path)
    assert config.env.params == {"corpus": "data/search/corpus.jsonl"}


@pytest.mark.parametrize("name", ["code", "math_tool"])
def test_a_sandbox_on_a_server_keeps_its_own_limits(name: str, tmp_path: Path) -> None:
    ours = asked_for(f"bash examples/run_{name}.sh", tmp_path / "ours")[1]
    assert ours.sandbox.limits.cpu_s == 2
    elsewhere = "sandbox.url=http://127.0.0.1:8080"
    config = asked_for(f"bash examples/run_{name}.sh {elsewhere}", tmp_path / "http")[1]
    assert config.sandbox.limits.cpu_s == type(config.sandbox.limits)().cpu_s


def test_every_script_has_a_test() -> None:
    scripts = {path.stem.removeprefix("run_") for path in (ROOT / "examples").glob("run_*.sh")}
    # tests/e2e/test_smollm2.py and tests/e2e/test_evolve.py have these
    assert scripts == {*POLICIES, "smollm2", "evolve"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", POLICIES)
def test_the_script_trains_and_then_evaluates_what_it_trained(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, embedded: dict[str, str]
) -> None:
    whole = name == "math" and (ROOT / ".venv").is_dir()
    folder = ROOT if whole else request.getfixturevalue("checkout")
    # One whole run on Ray; the others are quicker without.
    small = [*SMALL, "env.rollout.val_n=2"] if name == "math" else [*SMALL, "trainer.controller=local"]
    samples = 2 if name == "math" else 1
    # a team that has learned nothing talks on to the last turn
    if name in (
        "plan_path",
        "sokoban",
        "sudoku",
    ):
        small.append("env.max_steps=2")
    if name == "async":
        small.append("env.params.latency_s=0.1")
    trained = run(folder, name, tmp_path, *small, within_s=400 if name == "math" else 240, **embedded)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert "before" in trained.stdout
    assert f"accuracy avg@{samples}" in trained.stdout
    if name == "math":  # each with an interval before and after
        for row in (
            "team .*accuracy avg@2",
            "accuracy pass@2",
            "solver .*accuracy_loop_1 avg@2",
            "verifier .*",
        ):
            assert re.search(rf"{row}( .*\[.*\]){{2}}", trained.stdout), trained.stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2" / "actor"
    assert tuple(sorted(p.name for p in checkpoint.iterdir())) == POLICIES[name]
    roles = {policy.replace("_", " ").title(): policy for policy in POLICIES[name]}
    swap = (
        {}
        if name in ("math", "search", "async")
        else dict(zip(roles, [*POLICIES[name][1:], POLICIES[name][0]], strict=True))
    )
    mapping = f"agent.role_policies={{{', '.join(f'{role}: {policy}' for role, policy in swap.items())}}}"
    evaluated = run(
        request.getfixturevalue("checkout"),
        name,
        tmp_path,
        "eval",
        *small,
        "trainer.controller=local",
        mapping,
        **embedded,
    )
    assert evaluated.returncode == 0, evaluated.stderr[-2000:]
    assert f"accuracy avg@{samples}" in evaluated.stdout
    (found,) = (tmp_path / "run" / "swapped").iterdir() if swap else [tmp_path / "run"]
    episodes = [
        json.loads(line)
        for line in (found / "trajectories" / "val_000002.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    spoke = {call["agent_id"]: call["policy_id"] for episode in episodes for call in episode["calls"]}
    # A search that is all that its Verifier asks for leaves the Answer Agent silent.
    assert set(spoke) - {"Answer Agent"} == set(swap or roles) - {"Answer Agent"}
    assert all(policy == (swap or roles)[role] for role, policy in spoke.items())


def test_eval_with_other_variables_than_those_of_the_training_makes_no_new_model(
    tmp_path: Path, checkout: Path
) -> None:
    evaluated = run(checkout, "math", tmp_path, "eval", DEMOS="7", EMBEDDED_DIR=str(tmp_path / "embedded"))
    assert evaluated.returncode == 1
    assert "eval finds no embedded model or data of SEED=0 DEMOS=7" in evaluated.stderr
    assert "warm start" not in evaluated.stderr
    assert not (tmp_path / "embedded").exists()


@pytest.mark.parametrize("framework", ["langgraph", "node"])
def test_the_script_of_a_framework_trains_its_team(
    framework: str, tmp_path: Path, checkout: Path, embedded: dict[str, str]
) -> None:
    if framework == "node" and shutil.which("npm") is None:
        pytest.skip("needs Node")
    pytest.importorskip("langgraph")
    trained = run(
        checkout,
        "examples/frameworks/run.sh",
        tmp_path,
        framework,
        *SMALL,
        "trainer.controller=local",
        **embedded,
    )
    if "npm error" in trained.stderr:
        pytest.skip("npm cannot install the package openai")
    assert trained.returncode == 0, trained.stderr[-2000:]
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"experiment_name: math_{framework}_seed0" in config and "orchestra_type: gateway" in config
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and "wg/solver_agent/actor/grad_norm" in lines[-1]


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    """The real GSM8K where it is beside the project, else two files of its form."""
    if GSM8K.is_dir():
        return GSM8K
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [
            {
                "question": f"Ann has {n} pens and finds {n}. How many?",
                "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>\n#### {2 * n}",
            }
            for n in range(20)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.needs_shared
def test_five_asynchronous_steps_on_gsm8k_as_it_is_published_go_through(
    checkout: Path, tmp_path: Path, gsm8k: Path, embedded: dict[str, str]
) -> None:
    steps = [
        *SMALL,
        "trainer.total_training_steps=5",
        "trainer.val_before_train=false",
        "trainer.controller=local",
    ]
    trained = run(
        checkout, "math", tmp_path, "async_training.mode=fully_async", *steps, DATA=str(gsm8k), **embedded
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["episode/count"] == 4 for line in lines)
    assert [line["fully_async/count/trained"] for line in lines] == [2, 4, 6, 8, 10]
    assert max(line["trainer/staleness"] for line in lines) > 0


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (
            [],
            {"DATA": "/nowhere"},
            "error: no /nowhere/train.parquet; DATA must be a folder with train.parquet and test.parquet",
        ),
        (
            [],
            {"MODEL_PATH": "./nowhere"},
            "error: MODEL_PATH=./nowhere is not a Hugging Face model folder (it has no config.json)",
        ),
        (["trainer.loger=[jsonl]"], {}, "error: unknown key trainer.loger"),
    ],
    ids=["data", "model", "key"],
)
def test_errors_are_raised_before_anything_is_created(
    checkout: Path, tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str
) -> None:
    ended = run(checkout, "math", tmp_path, *arguments, **variables)
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(said)
    assert not (tmp_path / "embedded").exists()


def test_a_model_of_the_users_own_on_generated_tasks_makes_no_other_model(
    checkout: Path, tmp_path: Path, tiny_model_dir: Path
) -> None:
    small = [
        *SMALL,
        "trainer.controller=local",
        "trainer.total_training_steps=1",
        "trainer.device=cpu",
        "data.max_response_length=8",
    ]
    ended = run(
        checkout,
        "math",
        tmp_path,
        *small,
        "trainer.val_before_train=false",
        "data.val_files=[]",
        MODEL_PATH=f"~/{tiny_model_dir.name}",
        HOME=str(tiny_model_dir.parent),
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    (folder,) = (path for path in (tmp_path / "embedded").iterdir() if path.is_dir())
    assert {path.name for path in folder.iterdir()} == {"train.parquet", "test.parquet"}


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_one_key_runs_the_single_agent_instead_of_the_team(world: str, tmp_path: Path) -> None:
    _, config = asked_for(f"bash examples/run_{world}.sh agent.orchestra_type=single", tmp_path)
    describe_preset(config)
    resolve_defaults(config)
    check_team(config)
    assert config.agent.agent_ids == ["Single Agent"] and config.env.env_name == world
    assert config.agent.orchestra == {"single": {"prompt_style": "short"}}
    assert len(resolve(config).policy_ids) == 1
