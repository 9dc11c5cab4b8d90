"""An audit of a real checkpoint: it plays the step that the run plays next, with its advantages, and says who
mattered.
"""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_system.audit import main as audit
from tests.e2e.conftest import Run
from verl.protocol import DataProto
from verl.trainer.ppo.credit.advantage import compute_advantage

WORLD = '''
"""A world that pays for the last reply."""

import zlib

from agent_system.environment import BaseEnv, Observation, Outcome
from agent_system.registry import EnvRegistry


@EnvRegistry.register("paying_world")
class PayingWorld(BaseEnv):
    blocking = False

    def reset(self, task):
        return Observation(task.prompt)

    def step(self, action):
        return Outcome(team=float(zlib.crc32(action.encode()) % 2), done=True)
'''
PAYS = {
    "agent.plugins": "[my_flow_package,paying_world]",
    "env.env_name": "paying_world",
    "env.rollout.n": 4,
    "trainer.save_freq": 1,
    "trainer.max_ckpt_to_keep": 3,
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
}
SIZES = ["--decisions", "16", "--alternatives", "3", "--continuations", "2", "--device", "cpu"]


@pytest.fixture
def world(user_package: Path) -> None:
    """The world, on the path that the package of a user is on."""
    (user_package / "paying_world.py").write_text(WORLD)


def means(batch: DataProto) -> dict[Any, float]:
    """The mean advantage of every row, by what the audit calls it."""
    columns = batch.non_tensor_batch
    mask = batch.batch["response_mask"].double()
    values = ((batch.batch["advantages"].double() * mask).sum(1) / mask.sum(1)).tolist()
    names = zip(*(columns[name] for name in ("traj_uid", "turn", "call", "candidate")), strict=True)
    keys = [(uid, int(turn), int(call), int(candidate)) for uid, turn, call, candidate in names]
    return dict(zip(keys, values, strict=True))


def ends(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an audit ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        audit(arguments)
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_checkpoint_plays_the_next_step_of_its_run_and_says_who_mattered(
    world: None, train: Run, tmp_path: Path, scored: list[Any], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    algorithm = train(PAYS).config.algorithm
    batch: DataProto = scored[1]
    played: list[Any] = []
    from agent_system.launch import audit as launch

    play_step = launch.play_step

    async def remembered(team: Any) -> Any:
        played.append(await play_step(team))
        return played[0]

    monkeypatch.setattr(launch, "play_step", remembered)
    capsys.readouterr()
    audit([str(tmp_path / "run"), "--step", "1", *SIZES])
    said = capsys.readouterr().out

    (step,) = played
    assert step.number == 2 and step.advantages["grpo"] == pytest.approx(means(batch))
    for name in ("rloo", "gigpo"):
        settings = replace(algorithm, adv_estimator=name)
        again = compute_advantage(copy.deepcopy(batch), name, num_repeat=4, config=settings)
        assert step.advantages[name] == pytest.approx(means(again))
    assert {"rloo", "opo", "remax", "rae", "reinforce_plus_plus"} <= set(step.advantages)
    assert not {"grpo_vectorized", "rloo_vectorized"} & set(step.advantages), "other names of the same"
    assert "gae" in step.left_out and step.tokens["remax"] > step.tokens["grpo"]

    result = json.loads((tmp_path / "run" / "audit" / "step_000001.json").read_text())
    assert (result["format"], result["step"], result["played"], result["decisions"]) == (1, 1, 2, 16)
    assert result["restored"] == {"yes": 16, "no": {}}
    effects = {row["agent"]: row for row in result["table"] if row["turn"] is None}
    assert effects["Verifier Agent"]["effect"] > 0.25 and effects["Verifier Agent"]["low"] > 0
    used = [row for row in result["estimators"] if row["used"]]
    assert {row["name"] for row in used} == {"grpo"} and len(used) == 3
    assert "16 decisions x (3 alternatives + 4 arms x 2 continuations): about" in said
    assert "restored 16 of 16 decisions" in said and "Verifier Agent" in said and "the run's" in said


def test_what_cannot_be_audited_is_one_line(
    world: None, train: Run, tasks: str, tmp_path: Path, tiny_model_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(tiny_model_dir, model)
    assert f"no checkpoint at {run}" in ends([str(run)], capsys)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "metrics.jsonl").write_text("{}\n")
    assert "no checkpoint at" in ends([str(tmp_path / "foreign")], capsys)
    file = tmp_path / "mine.jsonl"
    shutil.copy(tasks, file)
    train(PAYS | {"actor_rollout_ref.model.path": model, "data.train_files": file})
    assert "no checkpoint of step 7" in (line := ends([str(run), "--step", "7"], capsys))
    assert "there are those of: 1, 2" in line
    loader = run / "checkpoints" / "global_step_2" / "data.pt"
    loader.rename(tmp_path / "data.pt")
    assert "has no data.pt" in ends([str(run)], capsys)
    shutil.copy(tmp_path / "data.pt", loader)
    file.rename(tmp_path / "gone.jsonl")
    assert str(file) in ends([str(run)], capsys)
    (tmp_path / "gone.jsonl").rename(file)
    shutil.rmtree(model)
    assert str(model) in ends([str(run)], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--alternatives", "1"], "expected 2 or more, found 1"),
        (["run", "--decisions", "0"], "expected 1 or more, found 0"),
        (["run", "--continuations", "x"], "invalid"),
        ([], "RUN"),
    ],
)
def test_sizes_that_measure_nothing_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        audit(arguments)
    assert end.value.code == 2 and said in capsys.readouterr().err
