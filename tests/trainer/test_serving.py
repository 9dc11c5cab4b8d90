"""A saved team is served by engines on one device, however it was trained."""

from pathlib import Path

from tests.plans import plan_of
from verl.trainer.config import RunConfig
from verl.trainer.serving import Engines, for_serving, running_engines


def test_a_team_whose_engines_spanned_devices_is_served_on_one(tiny_model_dir: Path) -> None:
    config = RunConfig()
    config.trainer.n_gpus_per_node, config.rollout.n_gpus_per_node = 4, 2
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    model.path, rollout.name, rollout.tensor_model_parallel_size = str(tiny_model_dir), "vllm", 2
    own = for_serving(config, "cpu")
    with running_engines(own, plan_of(own), Engines()) as team:
        assert [stats["active"] for engines in team.engines.groups.values() for stats in engines.stats()] == [
            0.0,
            0.0,
        ]
    assert rollout.tensor_model_parallel_size == 2, "the saved configuration stays as it is"
