"""Devices of worker groups and of their engines: all of them, or parts that follow each other; wrong sizes
are one error.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import ray

from verl.trainer.config import (
    ActorRolloutRefConfig,
    AgentConfig,
    CollectConfig,
    ModelConfig,
    RunConfig,
    TrainerConfig,
)
from verl.trainer.plan.agent_overrides import PlacementError
from verl.trainer.plan.checks import check_engine_spans
from verl.trainer.plan.devices import (
    ENGINES,
    Devices,
    assign_devices,
    assign_engines,
    count_devices,
    processes_per_device,
)
from verl.trainer.plan.groups import GroupPlan, processes_per_node
from verl.trainer.plan.placement import Placement, build_placement
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import ControllerError, LocalController, RayController


def run_on(devices: int, engines: int = 0, **keys: Any) -> tuple[TrainerConfig, CollectConfig]:
    """Sections of a run on devices of the trainer and of the engines; `rollout` has further keys of the
    latter, the others are of the trainer.
    """
    rollout = CollectConfig(n_gpus_per_node=engines, **keys.pop("rollout", {}))
    return TrainerConfig(n_gpus_per_node=devices, **keys), rollout


def groups_on(sections: tuple[TrainerConfig, CollectConfig], placement: Placement) -> tuple[GroupPlan, ...]:
    """The worker groups of a run."""
    trainer, rollout = sections
    return RunPlan.of(RunConfig(trainer=trainer, rollout=rollout), placement).groups


@pytest.fixture
def placement() -> Placement:
    agent, base = AgentConfig(), ActorRolloutRefConfig()
    agent.agent_ids, base.model.path = ["Asker", "Judge", "Critic"], "some/model"
    return build_placement(agent, base)


def test_shared_groups_have_all_devices(placement: Placement) -> None:
    devices = assign_devices(*run_on(4), placement)
    assert (
        devices
        == dict.fromkeys(("asker", "judge", "critic"), Devices(0, 4))
        == assign_engines(*run_on(4), placement)
    )
    groups = groups_on(run_on(4), placement)
    assert processes_per_device(devices) == 3 and processes_per_node(*run_on(4), groups) == 12
    assert count_devices(*run_on(4, nnodes=2)) == 8
    assert {group.describe_devices() for group in groups} == {"devices 0 to 3"}


def test_dedicated_pools_are_equal_parts_or_as_large_as_asked_for(placement: Placement) -> None:
    equal = assign_devices(*run_on(3, nnodes=2, resource_pool="dedicated"), placement)
    assert equal == {"asker": Devices(0, 2), "judge": Devices(2, 2), "critic": Devices(4, 2)}
    assert processes_per_device(equal) == 1
    asked = assign_devices(
        *run_on(4, resource_pool="dedicated", pool_sizes={"critic": 1, "asker": 2, "judge": 1}), placement
    )
    assert asked == {"asker": Devices(0, 2), "judge": Devices(2, 1), "critic": Devices(3, 1)}


@pytest.mark.parametrize(
    ("devices", "keys", "said"),
    [
        (4, {"resource_pool": "dedicated"}, "4 devices cannot be divided equally among 3 worker groups"),
        (4, {"pool_sizes": {"asker": 4}}, "needs trainer.resource_pool=dedicated"),
        (
            4,
            {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 2}},
            "give each of them a size",
        ),
        (
            4,
            {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 1, "critic": 2}},
            "found 5 in all",
        ),
        (
            4,
            {"resource_pool": "dedicated", "pool_sizes": {"asker": 4, "judge": -1, "critic": 1}},
            "expected at least 1 each",
        ),
        (
            4,
            {"resource_pool": "dedicated", "pool_sizes": {"asker": [2, 1], "judge": 1, "critic": 1}},
            "has devices of engines, but rollout.n_gpus_per_node=0",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_one_error(
    placement: Placement, devices: int, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlacementError, match=said):
        assign_devices(*run_on(devices, **keys), placement)


@pytest.fixture
def judged() -> Placement:
    """Two trained groups, and one that is served only."""
    agent, base = AgentConfig(), ActorRolloutRefConfig()
    agent.agent_ids, base.model.path = ["Asker", "Judge", "Critic"], "some/model"
    agent.frozen = ["Judge"]
    return build_placement(agent, base)


def test_engines_of_every_group_have_a_pool_of_their_own_and_policies_those_of_the_trainer(
    judged: Placement,
) -> None:
    sections = run_on(6, 2, rollout={"nnodes": 2})
    served = next(spec.wg_id for spec in judged.groups if not spec.trained)
    assert assign_devices(*sections, judged) == dict.fromkeys(("asker", "critic"), Devices(0, 6))
    assert assign_engines(*sections, judged) == dict.fromkeys(
        ("asker", served, "critic"), Devices(0, 4, ENGINES)
    )
    assert count_devices(*sections) == 6 + 4
    groups = groups_on(sections, judged)
    assert processes_per_node(*sections, groups) == 2 * 6 + 3 * 2
    shown = {
        "asker": "devices 0 to 5, engines on rollout devices 0 to 3",
        served: "engines on rollout devices 0 to 3",
    }
    assert {group.wg_id: group.describe_devices() for group in groups}.items() >= shown.items()


def test_dedicated_engines_are_divided_on_their_own(judged: Placement) -> None:
    served = next(spec.wg_id for spec in judged.groups if not spec.trained)
    sizes = {"asker": [4, 2], served: [0, 1], "critic": [2, 1]}
    sections = run_on(6, 4, resource_pool="dedicated", pool_sizes=sizes)
    assert assign_devices(*sections, judged) == {"asker": Devices(0, 4), "critic": Devices(4, 2)}
    engines = {
        "asker": Devices(0, 2, ENGINES),
        served: Devices(2, 1, ENGINES),
        "critic": Devices(3, 1, ENGINES),
    }
    assert assign_engines(*sections, judged) == engines
    assert processes_per_node(*sections, groups_on(sections, judged)) == 6 + 4
    equal = run_on(6, 3, resource_pool="dedicated")
    assert [
        d.ranks for d in (*assign_devices(*equal, judged).values(), *assign_engines(*equal, judged).values())
    ] == [3, 3, 1, 1, 1]


@pytest.mark.parametrize(
    ("engines", "keys", "said"),
    [
        (
            2,
            {"resource_pool": "dedicated"},
            r"rollout\.nnodes=1 \* rollout\.n_gpus_per_node=2 = 2 devices.*3 worker groups.*trainer\.pool_s",
        ),
        (
            3,
            {"pool_sizes": {"asker": [3, 3]}},
            r"trainer\.pool_sizes \(of engines\)=.* needs trainer\.resource_pool=dedicated",
        ),
        (
            3,
            {"resource_pool": "dedicated", "pool_sizes": {"asker": [3, 3]}},
            r"trainer\.pool_sizes \(of engines\) names \['asker'\]",
        ),
    ],
)
def test_sizes_of_the_engines_that_do_not_fit_name_their_keys(
    placement: Placement, engines: int, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlacementError, match=said):
        assign_engines(*run_on(3, engines, **keys), placement)


def test_a_group_without_training_has_no_devices_of_the_trainer(judged: Placement) -> None:
    served = next(spec.wg_id for spec in judged.groups if not spec.trained)
    sizes = {"asker": 2, served: 1, "critic": 1}
    _, rollout = sections = run_on(4, 3, resource_pool="dedicated", pool_sizes=sizes)
    with pytest.raises(PlacementError, match=r"the trained worker groups are \['asker', 'critic'\]"):
        assign_devices(*sections, judged)
    rollout.n_gpus_per_node = 0
    assert (
        assign_devices(*sections, judged)[served]
        == Devices(2, 1)
        == assign_engines(*sections, judged)[served]
    )


def check_spans(sections: tuple[TrainerConfig, CollectConfig], placement: Placement) -> None:
    trainer, rollout = sections
    check_engine_spans(trainer, rollout, RunPlan.of(RunConfig(trainer=trainer, rollout=rollout), placement))


def spanning(*sizes: int) -> Placement:
    """Worker groups whose engines span so many devices each."""
    agent, base = (
        AgentConfig(agent_ids=["Asker", "Judge", "Critic"][: len(sizes)], specialization="full"),
        ActorRolloutRefConfig(),
    )
    base.model.path, base.rollout.name = "some/model", "vllm"
    if len(set(sizes)) > 1:
        agent.agent_specific_parameters = {"rollout": {"tensor_model_parallel_size": list(sizes)}}
    else:
        base.rollout.tensor_model_parallel_size = sizes[0]
    return build_placement(agent, base)


@pytest.mark.parametrize(
    ("tp", "devices", "keys"),
    [
        (1, 3, {"nnodes": 5}),
        (2, 4, {"nnodes": 2}),
        (4, 4, {"nnodes": 2}),
        (3, 6, {}),
        (2, 4, {"resource_pool": "dedicated"}),
        (
            2,
            3,
            {
                "nnodes": 2,
                "resource_pool": "dedicated",
                "pool_sizes": {"asker": 2, "judge": 4},
                "fails": "devices 2 to 3, which",
            },
        ),
        (
            2,
            3,
            {
                "nnodes": 2,
                "fails": "devices 2 to 3, which are on different nodes of 3.*choose a divisor of 3",
            },
        ),
        (2, 4, {"nnodes": 2, "resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 6}}),
        (4, 4, {"nnodes": 2, "resource_pool": "dedicated"}),
        (4, 8, {"nnodes": 2, "resource_pool": "dedicated", "pool_sizes": {"asker": 12, "judge": 4}}),
        (
            2,
            5,
            {
                "resource_pool": "dedicated",
                "pool_sizes": {"asker": 3, "judge": 2},
                "fails": "divide the 3 devices of worker group 'as",
            },
        ),
        (3, 4, {"nnodes": 3, "fails": "devices 3 to 5.*devices before the group's first, number 0,"}),
        (
            4,
            2,
            {
                "nnodes": 2,
                "fails": "rollout.tensor_model_parallel_size=4: an engine of worker group 'asker' would be on devices 0 to 3",
            },
        ),
        (2, 1, {"fails": "=2 does not divide the 1 devices of worker group 'asker'.*choose a divisor"}),
        (2, 3, {"engines": 2}),
        (
            2,
            2,
            {
                "engines": 3,
                "fails": r"does not divide the 3 devices .*rollout\.n_gpus_per_node, or .* trainer\.pool_sizes",
            },
        ),
        (
            2,
            2,
            {
                "engines": 3,
                "rollout": {"nnodes": 2},
                "fails": r"rollout devices 2 to 3, which .* 3 \(rollout\.n_gpus_per_node\)",
            },
        ),
        (
            2,
            2,
            {"controller": "local", "fails": "needs trainer.controller=ray: local runs one rank"},
        ),
    ],
)
def test_an_engine_has_its_devices_on_one_node(tp: int, devices: int, keys: dict[str, Any]) -> None:
    keys = dict(keys)
    fails = keys.pop("fails", None)
    with nullcontext() if fails is None else pytest.raises(PlacementError, match=fails):
        check_spans(run_on(devices, **keys), spanning(tp, tp))


def test_a_node_boundary_inside_a_group_that_begins_within_a_node_is_found() -> None:
    sizes = {"asker": 1, "judge": 4, "critic": 3}
    sections = run_on(4, nnodes=2, resource_pool="dedicated", pool_sizes=sizes)
    said = r"specific_parameters\.rollout\.tensor_model_parallel_size=2: .* 'judge' would be on devices 3 to 4.*number 1, be a multiple"
    with pytest.raises(PlacementError, match=said):
        check_spans(sections, spanning(1, 2, 1))


def test_a_team_of_servers_needs_no_devices() -> None:
    api = {"a": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}
    placement = build_placement(AgentConfig(agent_ids=["A"], api=api), ActorRolloutRefConfig())
    assert assign_devices(*run_on(4), placement) == {}
    with pytest.raises(
        PlacementError, match=r"trainer\.resource_pool=dedicated has no effect: all agents are behind an API"
    ):
        assign_devices(*run_on(4, resource_pool="dedicated"), placement)
    with pytest.raises(
        PlacementError, match=r"rollout\.n_gpus_per_node=2 has no effect: all agents are behind an API"
    ):
        assign_engines(*run_on(4, 2), placement)


def test_one_process_has_no_pools() -> None:
    with pytest.raises(ControllerError, match=r"dedicated needs trainer\.controller=ray"):
        LocalController(*run_on(1, resource_pool="dedicated"), "cpu")
    with pytest.raises(ControllerError, match=r"rollout\.n_gpus_per_node=1 needs trainer\.controller=ray"):
        LocalController(*run_on(1, 1), "cpu")


@pytest.mark.parametrize(
    ("sections", "policies", "engines"),
    [
        (run_on(4), ([4], 2 * 3), ([4], 2 * 3)),
        (run_on(4, resource_pool="dedicated"), ([4], 3), ([4], 3)),
        (run_on(6, 1, rollout={"nnodes": 2}), ([6], 2 * 2), ([1, 1], 2)),
        (run_on(6, 2, resource_pool="dedicated"), ([6], 2), ([2], 1)),
    ],
)
def test_a_gpu_has_room_for_the_workers_of_its_pool(
    monkeypatch: pytest.MonkeyPatch,
    sections: tuple[TrainerConfig, CollectConfig],
    policies: tuple[list[int], int],
    engines: tuple[list[int], int],
) -> None:
    """Of two agents: a policy, a critic and an engine each, or on GPUs of their own the first two or the
    last.
    """
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    trainer, rollout = sections
    config = RunConfig(trainer=trainer, rollout=rollout)
    placement = build_placement(config.agent, ActorRolloutRefConfig(model=ModelConfig(path="some/model")))
    controller = RayController(config, "cuda")
    for devices, expected in ((assign_devices, policies), (assign_engines, engines)):
        pool = controller._pool(next(iter(devices(trainer, rollout, placement).values())))
        whole = getattr(pool, "parent", pool)
        assert (whole.store, whole.max_colocate_count, whole.use_gpu) == (*expected, True)
        assert pool.world_size == whole.world_size // (2 if trainer.resource_pool == "dedicated" else 1)
