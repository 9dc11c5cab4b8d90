"""Keys of `critic` that cannot be used, found before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from verl.models.loader import ModelPathError, load_tokenizer
from verl.models.value_model import check_value_model
from verl.trainer.config import RunConfig
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement
from verl.trainer.ppo.critic import critic_agents, critic_config, needs_values, reads_values
from verl.trainer.ppo.per_agent import agent_config


def check_critic(config: RunConfig, placement: Placement, tokenizers: Mapping[str, Any]) -> None:
    """Find critics that are missing, cannot be made or could not read what they are given.

    Args:
        config: of the run.
        placement: of its agents.
        tokenizers: of the policies, by `wg_id`.

    Raises:
        ConfigError: naming the keys that contradict each other, or the model that does not fit.
    """
    _check_present(config, placement)
    with_critic = critic_agents(config, placement)
    for spec in placement.groups:
        if spec.wg_id not in with_critic:
            continue
        model, given = critic_config(config.critic, spec).model, config.critic.model
        key = "critic.model.path"
        try:
            check_value_model(model.path or "", model.trust_remote_code)
            own = tokenizers[spec.wg_id]
            source = given.tokenizer_path or given.path
            if source is not None:
                key = key if given.tokenizer_path is None else "critic.model.tokenizer_path"
                own = load_tokenizer(source, trust_remote_code=given.trust_remote_code)
        except ModelPathError as error:
            raise ConfigError(f"{key}={attrgetter(key)(config)!r} (critic of '{spec.wg_id}'): {error}") from error
        if own.get_vocab() != tokenizers[spec.wg_id].get_vocab():
            raise ConfigError(
                f"{key}={attrgetter(key)(config)!r} has another vocabulary than the policy '{spec.wg_id}', whose tokens it would read; "
                "use a model of the same family, or leave it out to start from the policy's own"
            )


def _check_present(config: RunConfig, placement: Placement) -> None:
    for agent in placement.trained:
        name = agent_config(config.algorithm, agent.agent_id).adv_estimator
        if config.critic.enable is False and needs_values(name):
            raise ConfigError(
                f"algorithm.adv_estimator={name} of agent '{agent.agent_id}' needs values, but critic.enable=false; "
                "set critic.enable=null, or choose an estimator without a critic"
            )
        if config.critic.enable and not reads_values(name):
            raise ConfigError(
                f"critic.enable=true, but algorithm.adv_estimator={name} of agent '{agent.agent_id}' reads no values: its critic would "
                "learn what nobody asks for; set critic.enable=null, or choose an estimator with a critic (gae)"
            )
        longest = agent.config.rollout.prompt_length or config.data.max_prompt_length
        if config.critic.view == "joint" and longest > config.critic.joint_prompt_length:
            raise ConfigError(
                f"critic.joint_prompt_length={config.critic.joint_prompt_length} is less than the prompt of agent '{agent.agent_id}' may "
                f"take ({longest} tokens); it holds the transcript and the prompt: choose a larger one"
            )
