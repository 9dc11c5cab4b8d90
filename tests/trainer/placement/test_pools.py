"""Devices of worker groups: all of them, or parts that follow each other; wrong sizes are one error."""

from contextlib import nullcontext
from typing import Any

import pytest

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RunConfig, TrainerConfig
from verl.trainer.placement.agent_overrides import PlacementError
from verl.trainer.placement.pools import Devices, assign_devices, check_engine_spans, processes_per_device
from verl.trainer.placement.table import Placement, build_placement
from verl.trainer.ppo.controller import ControllerError, LocalController


def trainer(devices: int, **keys: Any) -> TrainerConfig:
    config = TrainerConfig()
    config.n_gpus_per_node = devices
    for name, value in keys.items():
        setattr(config, name, value)
    return config


@pytest.fixture
def placement() -> Placement:
    agent, base = AgentConfig(), ActorRolloutRefConfig()
    agent.agent_ids, agent.model_sharing, base.model.path = ["Asker", "Judge", "Critic"], False, "some/model"
    return build_placement(agent, base)


def test_shared_groups_have_all_devices(placement: Placement) -> None:
    devices = assign_devices(trainer(4), placement)
    assert devices == dict.fromkeys(("asker", "judge", "critic"), Devices(0, 4))
    assert processes_per_device(devices) == 3


def test_dedicated_pools_are_equal_parts_or_as_large_as_asked_for(placement: Placement) -> None:
    equal = assign_devices(trainer(3, nnodes=2, resource_pool="dedicated"), placement)
    assert equal == {"asker": Devices(0, 2), "judge": Devices(2, 2), "critic": Devices(4, 2)}
    assert processes_per_device(equal) == 1
    asked = assign_devices(trainer(4, resource_pool="dedicated", pool_sizes={"critic": 1, "asker": 2, "judge": 1}), placement)
    assert asked == {"asker": Devices(0, 2), "judge": Devices(2, 1), "critic": Devices(3, 1)}


@pytest.mark.parametrize(
    ("devices", "keys", "said"),
    [
        (4, {"resource_pool": "dedicated"}, "4 devices cannot be divided equally among 3 worker groups"),
        (4, {"pool_sizes": {"asker": 4}}, "needs trainer.resource_pool=dedicated"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 2}}, "give each of them a size"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 1, "critic": 2}}, "found 5 in all"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 4, "judge": 0, "critic": 0}}, "expected at least 1 each"),
    ],
)
def test_sizes_that_do_not_fit_are_one_error(placement: Placement, devices: int, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        assign_devices(trainer(devices, **keys), placement)


def spanning(*sizes: int) -> Placement:
    """Worker groups whose engines span so many devices each."""
    agent, base = AgentConfig(agent_ids=["Asker", "Judge", "Critic"][: len(sizes)], model_sharing=False), ActorRolloutRefConfig()
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
        (2, 3, {"nnodes": 2, "resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 4}, "fails": "devices 2 to 3, which"}),
        (2, 3, {"nnodes": 2, "fails": "devices 2 to 3, which are on different nodes of 3.*choose a divisor of 3"}),
        (2, 4, {"nnodes": 2, "resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 6}}),
        (4, 4, {"nnodes": 2, "resource_pool": "dedicated"}),
        (4, 8, {"nnodes": 2, "resource_pool": "dedicated", "pool_sizes": {"asker": 12, "judge": 4}}),
        (2, 5, {"resource_pool": "dedicated", "pool_sizes": {"asker": 3, "judge": 2}, "fails": "divide the 3 devices of worker group 'as"}),
        (3, 4, {"nnodes": 3, "fails": "devices 3 to 5.*devices before the group's first, number 0,"}),
        (
            4,
            2,
            {"nnodes": 2, "fails": "rollout.tensor_model_parallel_size=4: an engine of worker group 'asker' would be on devices 0 to 3"},
        ),
        (2, 1, {"fails": "=2 does not divide the 1 devices of worker group 'asker'.*choose a divisor"}),
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
        check_engine_spans(trainer(devices, **keys), spanning(tp, tp))


def test_a_node_boundary_inside_a_group_that_begins_within_a_node_is_found() -> None:
    sizes = {"asker": 1, "judge": 4, "critic": 3}
    config = trainer(4, nnodes=2, resource_pool="dedicated", pool_sizes=sizes)
    said = r"specific_parameters\.rollout\.tensor_model_parallel_size=2: .* 'judge' would be on devices 3 to 4.*number 1, be a multiple"
    with pytest.raises(PlacementError, match=said):
        check_engine_spans(config, spanning(1, 2, 1))


def test_a_team_of_servers_needs_no_devices() -> None:
    api = {"a": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}
    placement = build_placement(AgentConfig(agent_ids=["A"], api=api), ActorRolloutRefConfig())
    assert assign_devices(trainer(4), placement) == {}
    with pytest.raises(PlacementError, match=r"trainer\.resource_pool=dedicated has no effect: all agents are behind an API"):
        assign_devices(trainer(4, resource_pool="dedicated"), placement)


def test_one_process_has_no_pools() -> None:
    config = RunConfig()
    config.trainer.resource_pool = "dedicated"
    with pytest.raises(ControllerError, match=r"dedicated needs trainer\.controller=ray"):
        LocalController(config, "cpu")
