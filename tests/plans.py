"""Plans of runs for tests."""

from dataclasses import replace

from verl.trainer.config import RunConfig
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan


def plan_of(config: RunConfig) -> RunPlan:
    """The plan of a configuration whose keys are not checked, of any model where it names none."""
    models = config.actor_rollout_ref
    if models.model.path is None:
        models = replace(models, model=replace(models.model, path="some/model"))
    return RunPlan.of(config, build_placement(config.agent, models))
