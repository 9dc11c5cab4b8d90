"""Keys under `critic`: one value model per worker group, trained when an estimator needs values.

Its updates, optimizer, sharding and traces are those of the policy (`actor_rollout_ref.actor`)
unless they are set here; the keys that it declares itself have defaults of their own.
"""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.model import ACTOR, FSDPConfig, OptimConfig, TrainedModelConfig, UpdateConfig
from verl.trainer.config.names import LOSS_AGG_MODES
from verl.trainer.config.profiler import PROFILED, ProfilerConfig
from verl.trainer.config.spec import key, section

CRITIC = "an estimator that reads values (gae), or critic.enable=true"


@dataclass
class CriticModelConfig(TrainedModelConfig):
    path: Optional[str] = key(
        None, "Hugging Face folder or hub id of the initial critics; default: each policy's own model"
    )
    # by default the policy's: its tokens are the input, and its own code may run where the path is
    # its own
    tokenizer_path: Optional[str] = key(None, "tokenizer folder, if it is not the model's")
    trust_remote_code: bool = key(False, "run code that is shipped with the model")


@dataclass
class CriticOptimConfig(OptimConfig):
    lr: float = key(1e-5, "peak learning rate of AdamW", ge=0)


@dataclass
class CriticConfig(UpdateConfig):
    enable: Optional[bool] = key(
        None,
        "null: for agents whose estimator needs values (gae); true: for all agents, all of which "
        "must read values",
        always=True,
    )
    joint_prompt_length: Optional[int] = key(
        None,
        "the critic reads the episode's transcript before the prompt, together of this many tokens at "
        "most (the oldest part is cut); null: it reads the agent's own prompt alone",
        ge=1,
    )
    cliprange_value: float = key(0.5, "clip range of a value around the old value", gt=0)
    # the policy's depends on its loss
    loss_agg_mode: str = key(
        "token-mean", "aggregation of token losses", choices=LOSS_AGG_MODES, like=f"{ACTOR}.loss_agg_mode"
    )
    model: TrainedModelConfig = section(CriticModelConfig, like="actor_rollout_ref.model")
    optim: OptimConfig = section(CriticOptimConfig, like=f"{ACTOR}.optim")
    fsdp: FSDPConfig = section(FSDPConfig, like=f"{ACTOR}.fsdp_config")
    profiler: ProfilerConfig = section(ProfilerConfig, effect=PROFILED, like=f"{ACTOR}.profiler")
