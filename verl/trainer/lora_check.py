"""What can be wrong with adapters, found before a model loads; and which files their bases are."""

from __future__ import annotations

from dataclasses import fields

from verl.trainer.config import ModelConfig, RunConfig
from verl.trainer.config_check import ConfigError
from verl.trainer.config_effect import IneffectiveKeyError
from verl.trainer.placement import LORA_KEYS, Placement


def check_lora_keys(config: RunConfig, placement: Placement) -> None:
    """Look at the LoRA keys of every agent.

    Raises:
        ConfigError: a value that cannot be used.
        IneffectiveKeyError: a key that was changed where there is no adapter to read it.
    """
    common = config.actor_rollout_ref.model
    for agent in placement.agents:
        own = agent.config.model
        for name in ("target_modules", "exclude_modules"):
            value = getattr(own, name)
            listed = [value] if isinstance(value, str) else value
            optional = name == "exclude_modules" and value is None
            if not optional and not (isinstance(listed, list) and listed and all(isinstance(v, str) and v for v in listed)):
                raise ConfigError(
                    f"{agent.key(f'model.{name}')}={value!r} (agent '{agent.agent_id}'): expected layer names, one regex"
                    f"{' or all-linear' if name == 'target_modules' else ' or null'}"
                )
        for name in LORA_KEYS:
            if agent.adapter is None and getattr(own, name) != getattr(common, name):
                raise IneffectiveKeyError(
                    f"agent.agent_specific_parameters.model.{name} gives agent '{agent.agent_id}' {getattr(own, name)}, which has no "
                    "effect: its agent.specialization is not lora; give it null"
                )
    defaults = {f.name: f.default for f in fields(ModelConfig)}
    for name in LORA_KEYS:
        if all(agent.adapter is None for agent in placement.agents) and getattr(common, name) != defaults[name]:
            raise IneffectiveKeyError(
                f"actor_rollout_ref.model.{name}={getattr(common, name)} has no effect; it needs an agent with agent.specialization=lora"
            )


def adapter_sizes(placement: Placement) -> dict[str, int]:
    """Parameters of every adapter, by policy; models are built without memory for their weights.

    Raises:
        ModelPathError: a base has no configuration that can be read.
        ConfigError: an adapter that does not fit its base.
    """
    import torch

    from verl.models.loader import build_causal_lm
    from verl.models.lora import LoraTargetError, lora_size, lora_spec

    sizes: dict[str, int] = {}
    for spec in placement.groups:
        if not spec.adapters:
            continue
        with torch.device("meta"):
            base = build_causal_lm(
                spec.model_path,
                dtype=torch.float32,
                attn_implementation="eager",
                trust_remote_code=spec.config.model.trust_remote_code,
            )
        for policy, config in spec.adapters.items():
            try:
                sizes[policy] = lora_size(base, lora_spec(config.model))
            except LoraTargetError as error:
                row = next(row for row in placement.agents if row.adapter == policy)
                name, _, said = str(error).partition("=")
                raise ConfigError(f"adapter '{policy}' on {spec.model_path!r}: {row.key(f'model.{name}')}={said}") from error
    return sizes
