"""Which steps and calls are recorded by `torch.profiler`, and what the files have."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.engine.builders import make_rows
from verl.protocol import DataProto
from verl.trainer.config import CriticConfig, GlobalProfilerConfig, ModelConfig, ProfilerConfig, RunConfig
from verl.trainer.plan.placement import build_placement
from verl.trainer.ppo.traces import RECORDED, TeamTraces, recorded_steps
from verl.workers.critic_worker import CriticWorker
from verl.workers.profiler import META, Trace


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ([5, 2, 3], ["", "step2", "step3", "", "step5"]),
        ([5, [2, 3]], ["", "step2-3", "step2-3", "", "step5"]),
    ],
)
def test_a_trace_has_one_step_or_a_run_of_steps(steps: list[Any], names: list[str]) -> None:
    config = GlobalProfilerConfig(steps=steps)
    assert [recorded_steps(config, step) for step in range(1, 6)] == names
    assert recorded_steps(GlobalProfilerConfig(), 2) == ""


@pytest.mark.parametrize(
    ("profiler", "ranks"),
    [
        (ProfilerConfig(), None),
        (ProfilerConfig(ranks=[0]), [0]),
        (ProfilerConfig(ranks=[1, 3]), [1, 3]),
        (ProfilerConfig(ranks="all"), [0, 1, 2, 3]),
    ],
)
def test_enabled_workers_are_recorded_on_the_chosen_ranks(
    profiler: ProfilerConfig, ranks: list[int] | None, tmp_path: Path
) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = "some/model"
    config.actor_rollout_ref.actor.profiler = profiler
    config.trainer.default_local_dir = str(tmp_path)
    placement = build_placement(config.agent, config.actor_rollout_ref)
    policy = placement.policy_ids[0]
    traces = TeamTraces(config.trainer, config.critic, config.global_profiler, placement)
    meta = traces.meta(DataProto(meta_info={RECORDED: "step2"}), policy, critic=False)
    recorded = [rank for rank in range(4) if META in meta and meta[META].covers(rank)]
    assert recorded == (ranks or [])
    assert (
        not meta
        or meta[META].file(1) == tmp_path / "profile" / f"step2_policy_{policy}_rank1.pt.trace.json.gz"
    )
    assert traces.meta(DataProto(), policy, critic=False) == {}, "no step is recorded"
    assert traces.meta(DataProto(meta_info={RECORDED: "step2"}), policy, critic=True) == {}, (
        "the critic is not recorded"
    )


def test_the_calls_of_a_step_are_ranges_of_one_trace_and_others_leave_none(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    worker = CriticWorker(
        CriticConfig(model=ModelConfig(path=str(tiny_model_dir))), seed=0, device="cpu", num_threads=1
    )
    worker.init_model()
    rows = make_rows(2)
    plain = worker.compute_values(DataProto.from_dict(tensors=dict(rows)))
    assert not list(tmp_path.iterdir())
    trace = Trace(str(tmp_path / "step1_critic_a"), (0,), ("shapes",))
    rows["values"] = worker.compute_values(
        DataProto.from_dict(tensors=dict(rows), meta_info={META: trace})
    ).batch["values"]
    assert rows["values"].equal(plain.batch["values"])
    worker.update_critic(DataProto.from_dict(tensors=rows, meta_info={META: trace}))
    with gzip.open(trace.file(0), "rt") as file:
        events = json.load(file)["traceEvents"]
    calls = {
        event["name"]: event for event in events if event.get("name") in ("compute_values", "update_critic")
    }
    assert calls["compute_values"]["ts"] + calls["compute_values"]["dur"] <= calls["update_critic"]["ts"]
    assert any(event.get("name") == "aten::mm" and "Input Dims" in event["args"] for event in events)
    assert [path.name for path in tmp_path.iterdir()] == [trace.file(0).name]
    elsewhere = DataProto.from_dict(
        tensors=make_rows(2), meta_info={META: Trace(str(tmp_path / "other"), (1,))}
    )
    worker.compute_values(elsewhere)
    assert len(list(tmp_path.iterdir())) == 1, "rank 0 is not among the ranks"
