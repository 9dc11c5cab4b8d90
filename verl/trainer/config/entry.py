"""How the typed config becomes a Hydra config, and how free-form options are given without a plus sign."""

from __future__ import annotations

from collections.abc import Sequence

from verl.trainer.config.run import RunConfig

CONFIG_NAME = "ppo_trainer"
# Sections whose keys belong to the user's own workflow, environment or agents.
FREE_FORM = ("agent.orchestra.", "agent.agent_specific_parameters.", "env.params.")


def register_config() -> str:
    """Store `RunConfig` in Hydra's ConfigStore and return the name to give `hydra.main`; Hydra writes no folders of its own."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    store.store(
        name=CONFIG_NAME,
        node={
            "defaults": ["run_schema", {"override hydra/job_logging": "disabled"}, {"override hydra/hydra_logging": "disabled"}, "_self_"],
            "hydra": {"run": {"dir": "."}, "output_subdir": None},
        },
    )
    return CONFIG_NAME


def free_form_overrides(overrides: Sequence[str]) -> list[str]:
    """Put `++` before overrides of free-form sections, which Hydra would refuse as unknown keys."""
    return [f"++{o.lstrip('+')}" if o.lstrip("+").startswith(FREE_FORM) else o for o in overrides]
