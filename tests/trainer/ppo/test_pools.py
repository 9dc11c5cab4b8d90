"""Devices of worker groups: all of them, or parts that follow each other; wrong sizes are one error."""

from typing import Any

import pytest

from verl.trainer.agent_overrides import PlacementError
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RunConfig, TrainerConfig
from verl.trainer.placement import Placement, build_placement
from verl.trainer.ppo.controller import ControllerError, LocalController
from verl.trainer.ppo.pools import Devices, assign_devices, processes_per_device


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
        (4, {"resource_pool": "dedicated"}, "4 devices cannot be shared out equally among 3 worker groups"),
        (4, {"pool_sizes": {"asker": 4}}, "needs trainer.resource_pool=dedicated"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 2}}, "give each of them a size"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 2, "judge": 1, "critic": 2}}, "found 5 in all"),
        (4, {"resource_pool": "dedicated", "pool_sizes": {"asker": 4, "judge": 0, "critic": 0}}, "expected at least 1 each"),
    ],
)
def test_sizes_that_do_not_fit_are_one_error(placement: Placement, devices: int, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        assign_devices(trainer(devices, **keys), placement)


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
