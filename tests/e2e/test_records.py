"""What runs record of themselves: `run.json`, `credit/`, and the fields of calls in `trajectories/`."""

import json
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, weights
from tests.e2e.teams import LEVELS
from tests.e2e.test_fully_async import ASYNC
from tests.e2e.test_one_step_off import ONE_STEP_OFF, TREE
from tests.house.source import ROOT

LANES = ASYNC | LEVELS["L3"].changes | {"async_training.max_lead": 1}
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "one policy": {"agent.specialization": "prompt"},
    "one_step_off": ONE_STEP_OFF,
    "lanes": LANES,
    "tree": TREE | {"rollout.tree.returns": "committed"},
    "kl in the reward": {"algorithm.kl_ctrl.kl_coef": 0.001},
    "remax": {"algorithm.adv_estimator": "remax"},
    "rae": {"algorithm.adv_estimator": "rae"},
    "gae": {"algorithm.adv_estimator": "gae"},
}
OWN_COLUMNS = {
    "one_step_off": {"old_logp", "entropy", "is_weight"},
    "lanes": {"old_logp", "entropy", "is_weight"},
    "kl in the reward": {"old_logp", "entropy", "kl"},
    "remax": {"baseline"},
    "rae": {"baseline"},
    "gae": {"baseline"},
}
COMMON = {
    "traj_uid", "turn", "call", "candidate", "agent_id", "policy_id", "group", "tokens", "advantage", "abs",
    "logp",
}  # fmt: skip


def state(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return content


def credit(run_dir: Path, step: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "credit" / f"step_{step:06d}.json").read_text())
    return content


def episodes(run_dir: Path, name: str) -> list[dict[str, Any]]:
    lines = (run_dir / "trajectories" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("mode", MODES)
def test_every_trained_row_has_its_advantage_in_every_mode(
    train: Run, tmp_path: Path, scored: list[Any], mode: str
) -> None:
    train(MODES[mode])
    run_dir = tmp_path / "run"
    assert state(run_dir)["state"] == "done" and state(run_dir)["step"] == 2
    assert len(scored) == 2
    for step, batch in enumerate(scored, 1):
        content = credit(run_dir, step)
        columns = content["columns"]
        assert set(columns) == COMMON | OWN_COLUMNS.get(mode, set())
        mask = batch.batch["response_mask"].bool()
        assert len(columns["advantage"]) == len(batch) and columns["tokens"] == mask.sum(dim=1).tolist()
        for row, (advantage, tokens) in enumerate(zip(columns["advantage"], columns["tokens"], strict=True)):
            expected = batch.batch["advantages"][row][mask[row]].double().mean().item() if tokens else 0.0
            assert advantage == pytest.approx(expected, rel=1e-6, abs=1e-7)
        assert all(value is not None for values in columns.values() for value in values)
        calls = {
            (episode["traj_uid"], call["turn"], call["call"], call["candidate"]): call
            for episode in episodes(run_dir, f"train_{step:06d}")
            for call in episode["calls"]
        }
        names = zip(*(columns[name] for name in ("traj_uid", "turn", "call", "candidate")), strict=True)
        for agent_id, key in zip(columns["agent_id"], names, strict=True):
            assert calls[key]["agent_id"] == agent_id and calls[key]["trained"]
        greedy = {uid for uid, cause in content["left_out"].items() if cause == "greedy"}
        assert (len(greedy) == 2) == (mode == "remax")
        assert set(content["left_out"]) == greedy


def test_the_groups_that_dynamic_sampling_leaves_out_have_a_cause(train: Run, tmp_path: Path) -> None:
    train(
        {
            "algorithm.filter_groups.metric": "seq_reward",
            "actor_rollout_ref.rollout.temperature": 0.2,
            "env.rollout.n": 2,
            "data.train_batch_size": 4,
            "trainer.total_training_steps": 1,
            "trainer.val_before_train": False,
        }
    )
    content = credit(tmp_path / "run", 1)
    trained = {name.rpartition("#")[0] for name in content["columns"]["traj_uid"]}
    every = {episode["uid"] for episode in episodes(tmp_path / "run", "train_000001")}
    assert trained | set(content["left_out"]) == every and not trained & set(content["left_out"])
    assert set(content["left_out"].values()) <= {"no signal", "surplus"}


@pytest.mark.parametrize("mode", [{}, ONE_STEP_OFF | {"actor_rollout_ref.actor.ppo_epochs": 2}, LANES])
def test_log_probs_of_drawn_tokens_change_with_the_update(
    train: Run, tmp_path: Path, mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        train(mode | {"trainer.log_tokens": 3})
    assert "trainer.log_tokens=3: one more forward pass of 3 rows after each update" in caplog.text
    for step in (1, 2):
        columns = credit(tmp_path / "run", step)["columns"]
        drawn = [row for row, values in enumerate(columns["log_prob_after"]) if values is not None]
        assert len(drawn) == 3
        for row in drawn:
            before = columns["log_prob_before"][row]
            after = columns["log_prob_after"][row]
            advantages = columns["token_advantages"][row]
            assert len(before) == len(after) == len(advantages) == columns["tokens"][row]
            assert sum(before) == pytest.approx(columns.get("old_logp", columns["logp"])[row], abs=1e-4)
            assert sum(advantages) / len(advantages) == pytest.approx(columns["advantage"][row], abs=1e-6)
            assert before != after and max(after) <= 0


def test_the_forward_pass_after_an_update_changes_no_weight(train: Run, tmp_path: Path) -> None:
    found = []
    for count in (0, 4):
        folder = tmp_path / f"run{count}"
        train({"trainer.log_tokens": count, "trainer.default_local_dir": folder})
        found.append(weights(folder, 2))
    assert found[0] == found[1]


def test_calls_have_order_and_times_and_the_run_its_facts(train: Run, tmp_path: Path) -> None:
    train({"trainer.log_trajectories": 3})
    run_dir = tmp_path / "run"
    content = state(run_dir)
    assert content["total_steps"] == 2 and content["open_spans"] == [] and content["error"] is None
    assert content["attempt"]["from_step"] == 0 and content["episodes_in_progress"] == 0
    assert [agent["agent"] for agent in content["agents"]] == ["Asker", "Verifier Agent"]
    assert all(agent["trained"] and agent["policy"] and agent["group"] for agent in content["agents"])
    assert content["versions"]["torch"] and content["machine"]["cpus"] >= 1
    for name in ("train_000001", "val_000002"):
        for episode in episodes(run_dir, name):
            assert content["attempt"]["started"] <= episode["started"] <= content["heartbeat"]
            assert "states" not in episode, "my_world draws none"
            for number, call in enumerate(episode["calls"]):
                assert call["order"] == call["prior_replies"] == number
                assert 0 <= call["began"] <= call["ended"]


def test_trackers_get_a_table_of_every_validation_and_an_error_of_one_ends_no_run(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from verl.utils.tracking.tensorboard import TensorboardBackend

    train({"trainer.logger": "[jsonl,tensorboard]", "trainer.test_freq": 1})
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    keys = [f"val/episodes/{step:06d}/text_summary" for step in (0, 1, 2)]
    assert events.Tags()["tensors"] == keys
    (event,) = events.Tensors(keys[2])
    assert event.tensor_proto.string_val[0].count(b"Verifier Agent: ") == 2

    def broken(*_: Any) -> None:
        raise ValueError("no such tracker")

    monkeypatch.setattr(TensorboardBackend, "log_table", broken)
    train({"trainer.logger": "[jsonl,tensorboard]", "trainer.resume_mode": "disable"})
    told = [r.message for r in caplog.records if "a table of episodes was not sent" in r.message]
    assert told == ["a table of episodes was not sent: ValueError: no such tracker"]


def test_an_error_of_the_credit_record_ends_no_run(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("advantages")

    monkeypatch.setattr("verl.trainer.ppo.step_records.write_credit", broken)
    train({"trainer.val_before_train": False})
    assert [r.message for r in caplog.records if "credit/" in r.message] == [
        "credit/ is incomplete: KeyError: 'advantages'"
    ]
    assert state(tmp_path / "run")["state"] == "done"


def test_a_run_that_fails_and_goes_on_says_both(train: Run, tmp_path: Path) -> None:
    from verl.trainer.ppo.credit.step_credit import CreditAssigner

    score = CreditAssigner.score
    run_dir = tmp_path / "run"

    def broken(self: CreditAssigner, batch: Any, timer: Any, version: int) -> Any:
        if version == 2:
            raise TimeoutError("waited 1 s for log-probs")
        return score(self, batch, timer, version)

    keys = {"trainer.total_training_steps": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CreditAssigner, "score", broken)
        with pytest.raises(TimeoutError):
            train(keys)
    failed = state(run_dir)
    assert (failed["state"], failed["step"]) == ("failed", 2)
    assert failed["error"].startswith("TimeoutError: waited 1 s for log-probs\nstep 2 is saved in ")
    train(keys)
    assert (state(run_dir)["state"], state(run_dir)["step"]) == ("done", 3)
    assert state(run_dir)["attempt"]["from_step"] == 2
    assert json.loads((run_dir / "run.1.json").read_text())["state"] == "failed"
    assert len(list((run_dir / "credit").iterdir())) == 3


def test_an_evaluation_leaves_the_state_of_the_run(train: Run, tmp_path: Path) -> None:
    train({})
    before = (tmp_path / "run" / "run.json").read_text()
    train({"trainer.val_only": True})
    assert (tmp_path / "run" / "run.json").read_text() == before
    assert not (tmp_path / "run" / "run.1.json").exists()


def test_the_episodes_of_samples_that_a_checkpoint_holds_stay_where_they_are(
    train: Run, tmp_path: Path
) -> None:
    keys = ONE_STEP_OFF | {"trainer.total_training_steps": 3, "trainer.save_freq": 1}
    run_dir = tmp_path / "run"
    train(keys)
    whole = episodes(run_dir, "train_000003")
    newest = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    newest.write_text("2")
    train(keys)
    assert episodes(run_dir, "train_000003") == whole, "they were not played again"
    assert credit(run_dir, 3)["left_out"] == {}
    assert (run_dir / "credit.1" / "step_000003.json").exists()


@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_a_process_that_a_signal_ends_has_the_right_state(
    overrides: Callable[..., list[str]], user_package: Path, tmp_path: Path, forked_python: str, number: str
) -> None:
    world = tmp_path / "killed_world.py"
    world.write_text(
        f"""
import os, signal, threading, time
import my_flow_package
from agent_system.registry import EnvRegistry
from tests.waiting import send_signal

SENT = threading.Lock()

@EnvRegistry.register("killed_world")
class KilledWorld(my_flow_package.MyWorld):
    def reset(self, task):
        if os.path.exists({str(tmp_path / "run" / "credit" / "step_000001.json")!r}):
            # a thread writes it, which a process that is killed does not wait for
            state = {str(tmp_path / "run" / "run.json")!r}
            while {number == "SIGKILL"} and '"step": 1,' not in open(state).read():
                time.sleep(0.01)
            # once: a second signal would stop the run without a checkpoint
            if not SENT.acquire(blocking=False):
                return super().reset(task)
            {"send_signal(signal.SIGTERM)" if number == "SIGTERM" else "os.kill(os.getpid(), signal.SIGKILL)"}
        return super().reset(task)
"""
    )
    changes = {
        "env.env_name": "killed_world", "agent.plugins": "[my_flow_package,killed_world]",
        "trainer.total_training_steps": 3, "trainer.val_before_train": False,
    }  # fmt: skip
    done = subprocess.run(
        [forked_python, "-m", "verl.trainer.main_ppo", *overrides(changes)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, user_package, tmp_path)))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    content = state(tmp_path / "run")
    if number == "SIGTERM":
        assert done.returncode == 143, done.stderr
        assert (content["state"], content["step"], content["error"]) == ("stopped", 1, None)
    else:
        assert done.returncode == -9
        assert (content["state"], content["step"]) == ("running", 1)
