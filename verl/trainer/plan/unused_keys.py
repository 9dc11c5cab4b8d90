"""The keys of a run that have no effect, for commands in the names of verl that may have some."""

from __future__ import annotations

from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys
from verl.trainer.plan.effects import Scope, changed, scopes_of, unmet_by_all
from verl.trainer.plan.run import RunPlan


def without_effect(config: RunConfig, plan: RunPlan) -> list[str]:
    """Return the changed common keys that have no effect; and keys that follow others, whatever
    their values are: without the keys that they follow, which may be among them, these would be
    changes.
    """
    run = Scope(config, plan)
    scopes = scopes_of(run)
    names = {key.name for key in changed(run)}
    return sorted(
        name
        for name, key in keys(RunConfig).items()
        if (name in names or key.like) and any(unmet_by_all(key, run, scopes))
    )
