"""An engine's process that is found dead between two steps' samples is replaced; a policy's is not."""

import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import LEVELS
from verl.protocol.generate import EngineGoneError
from verl.single_controller.worker_group import WorkerDiedError
from verl.trainer.ppo.group_calls import TeamError
from verl.workers.policy_worker import PolicyWorker
from verl.workers.rollout.server import RolloutWorker

pytestmark = pytest.mark.e2e


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make calls of a worker's method fail as they do when its process is gone: those with the given numbers,
    from 1.
    """

    def make(worker: type[Any], method: str, *numbers: int) -> None:
        kill(monkeypatch, worker, method, *numbers)

    return make


def kill(
    patch: pytest.MonkeyPatch,
    worker: type[Any],
    method: str,
    *numbers: int,
    error: type[Exception] = WorkerDiedError,
) -> None:
    """As `dying`, for as long as the patch lasts."""
    call, calls = getattr(worker, method), iter(range(1, 1000))

    @functools.wraps(call)
    def dead_or_alive(*args: Any, **kwargs: Any) -> Any:
        if next(calls) in numbers:
            raise error(f"{method} met a dead process")
        return call(*args, **kwargs)

    patch.setattr(worker, method, dead_or_alive)


def test_a_dead_engine_is_replaced_when_it_gets_its_weights(train: Run, tmp_path: Path) -> None:
    changes = {"trainer.total_training_steps": 2, "trainer.val_before_train": False, "data.val_files": "[]"}
    per_update = calls_of(("update_weights", "wake"), tmp_path / "whole", train, changes)
    (_, whole) = (line for line in read_metrics(tmp_path / "whole") if "actor/lr" in line)
    for method, error in itertools.product(per_update, (WorkerDiedError, EngineGoneError)):
        folder = tmp_path / f"{method}-{error.__name__}"
        with pytest.MonkeyPatch.context() as patch:
            kill(patch, RolloutWorker, "sleep", 1, error=error)
            kill(patch, RolloutWorker, method, per_update[method] + 1, error=error)
            train(changes | {"trainer.default_local_dir": folder})
        first, second = (line for line in read_metrics(folder) if "actor/lr" in line)
        assert [line["training/engine_restarts"] for line in (first, second)] == [1, 1], folder.name
        assert second["actor/grad_norm"] == whole["actor/grad_norm"], (
            f"{folder.name}: the new engine samples from the weights of the step"
        )


def test_an_engine_that_dies_while_it_samples_is_replaced_with_all_adapters(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in step 2 with the first request of a second speaker; requests of that moment come together."""
    changes = LEVELS["L2"].changes | {"trainer.val_before_train": False, "data.val_files": "[]"}
    train(changes | {"trainer.default_local_dir": tmp_path / "whole"})
    submit, dead = RolloutWorker.submit, list[RolloutWorker]()

    @functools.wraps(submit)
    def submitted(worker: RolloutWorker, session: str, requests: Any) -> Any:
        names = [request.request_id for _, request in requests]
        if not dead and any(name.startswith("step2/") and name.endswith("/1.1") for name in names):
            dead.append(worker)
        if worker in dead:
            raise WorkerDiedError("submit met a dead process")
        return submit(worker, session, requests)

    monkeypatch.setattr(RolloutWorker, "submit", submitted)
    train(changes)
    lines, whole = (
        [line for line in read_metrics(tmp_path / name) if "actor/lr" in line] for name in ("run", "whole")
    )
    assert [line["training/engine_restarts"] for line in lines] == [0, 1]
    for name in ("asker", "verifier_agent"):
        key = f"wg/{name}/actor/grad_norm"
        assert lines[1][key] == whole[1][key] != whole[0][key], "it samples from the adapters of the step"
        assert lines[1][key] > 0


def test_an_engine_is_not_started_anew_on_another_base(
    train: Run, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = shutil.copytree(tiny_model_dir, tmp_path / "base")

    def dies(worker: RolloutWorker, *_: Any) -> None:
        (base / "config.json").write_text((tiny_model_dir / "config.json").read_text() + "\n")
        raise WorkerDiedError("submit met a dead process")

    monkeypatch.setattr(RolloutWorker, "submit", dies)
    changes = {
        "actor_rollout_ref.model.path": base,
        "trainer.val_before_train": False,
        "data.val_files": "[]",
    }
    with pytest.raises(
        EngineGoneError,
        match=r"could not be restarted: the files of .*base' have changed since the run began",
    ):
        train(LEVELS["L2"].changes | changes)


def calls_of(methods: tuple[str, ...], folder: Path, train: Run, changes: dict[str, Any]) -> dict[str, int]:
    """How often a sync calls each method: there is one before the first step and one after each of two."""
    counts = dict.fromkeys(methods, 0)

    def counted(method: str) -> Callable[..., Any]:
        call = getattr(RolloutWorker, method)

        @functools.wraps(call)
        def count(*args: Any, **kwargs: Any) -> Any:
            counts[method] += 1
            return call(*args, **kwargs)

        return count

    with pytest.MonkeyPatch.context() as patch:
        for method in methods:
            patch.setattr(RolloutWorker, method, counted(method))
        train(changes | {"trainer.default_local_dir": folder})
    assert not any(count % 3 for count in counts.values())
    return {method: count // 3 for method, count in counts.items()}


def test_an_engine_that_dies_again_in_a_step_ends_the_run_in_one_line(
    train: Run, dying: Callable[..., None]
) -> None:
    dying(RolloutWorker, "wake", 2, 3)
    with pytest.raises(
        TeamError, match=r"worker group '(\w+)': engine \1 died and could not be restarted: wake met"
    ) as e:
        train({"trainer.val_before_train": False, "data.val_files": "[]"})
    assert "\n" not in str(e.value)


def test_an_engine_that_dies_in_the_check_at_the_start_is_replaced(
    train: Run, dying: Callable[..., None], tmp_path: Path
) -> None:
    dying(RolloutWorker, "generate", 2, 14)
    train({"trainer.checks": "[engines,memory]", "trainer.val_before_train": False, "data.val_files": "[]"})
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 2 and steps[-1]["training/engine_restarts"] >= 1


def test_a_dead_policy_ends_the_run(train: Run, dying: Callable[..., None]) -> None:
    dying(PolicyWorker, "next_weights", 4)
    with pytest.raises(TeamError, match="next_weights met a dead process"):
        train({"trainer.val_before_train": False, "data.val_files": "[]"})
