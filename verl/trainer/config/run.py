"""Keys under `data`, `agent`, `env`, `rollout`, `trainer`, `ray_init`, and the root of the tree.

Three sections are called `rollout`: this one says how episodes are collected, `env.rollout` how many are played of a task, and
`actor_rollout_ref.rollout` how an engine samples a reply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from verl.trainer.config.algorithm import AlgorithmConfig
from verl.trainer.config.critic import CRITIC, CriticConfig
from verl.trainer.config.model import ActorRolloutRefConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.sandbox import SandboxConfig
from verl.trainer.config.spec import LONGEST_S, key, section, texts
from verl.utils.tracking.backend import BACKENDS

# Arguments of a tokenizer's apply_chat_template, and of its template, that the run gives itself or that no run may have.
TEMPLATE_ARGUMENTS = (
    "self", "conversation", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
)  # fmt: skip


def _template_kwargs(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if taken := sorted({*TEMPLATE_ARGUMENTS} & {*given}):
        raise ValueError(f"{taken[0]} is set by the run; expected what the model's chat template reads")
    if not isinstance(given.get("chat_template", ""), str):
        raise ValueError("expected a template in Jinja as chat_template")
    return given


@dataclass
class DataConfig:
    train_files: Any = key(
        [], "one parquet or jsonl file or a list of them: training tasks in verl's schema", type=Union[str, list[str]], check=texts
    )
    val_files: Any = key(
        [], "one parquet or jsonl file or a list of them: validation tasks", type=Optional[Union[str, list[str]]], check=texts
    )
    prompt_key: str = key("prompt", "column with the chat messages of a task")
    train_batch_size: int = key(16, "tasks of one training step", ge=1)
    val_batch_size: int = key(0, "tasks validated at a time; 0 takes all at once", ge=0)
    train_max_samples: int = key(-1, "use only this many training tasks; -1 uses all", ge=1, off=-1)
    val_max_samples: int = key(-1, "use only this many validation tasks; -1 uses all", ge=1, off=-1)
    max_prompt_length: int = key(512, "longest prompt of a call, in tokens", ge=1)
    max_response_length: int = key(512, "longest reply of a call, in tokens", ge=1)
    filter_overlong_prompts: bool = key(True, "drop (and count) tasks whose prompt is too long; off makes them an error")
    apply_chat_template_kwargs: dict[str, Any] = key(
        {}, "more arguments of the chat template, e.g. enable_thinking=false for Qwen3", check=_template_kwargs
    )
    shuffle: bool = key(True, "shuffle the training tasks every epoch")
    seed: int = key(0, "seed of data order, environments, sampling and mini-batch shuffles", ge=0, le=2**32 - 1)


@dataclass
class AgentConfig:
    agent_ids: list[str] = key(["Solver Agent", "Verifier Agent"], "agents of the team", check=texts)
    model_ids: list[Optional[str]] = key(
        [],
        "model of each agent, parallel to agent_ids, null for one behind an API; empty uses actor_rollout_ref.model.path for all",
        check=texts,
    )
    model_sharing: bool = key(False, "agents with the same model share one policy; off gives every agent its own")
    specialization: Any = key(
        None,
        "prompt (agents with the same model share one policy) | lora (they share a frozen base, each has its own adapter) | full (each "
        "agent has its own model); one value or a list parallel to agent_ids, null for one behind an API; null follows model_sharing",
        type=Optional[Union[str, list[Optional[str]]]],
    )
    adapter_ids: list[Optional[str]] = key(
        [], "specialization=lora: adapter of each agent, parallel to agent_ids; agents with one name share it; null: the agent's own"
    )
    frozen: list[str] = key([], "agents (names or slugs) that are served as their models are given and never trained")
    api: dict[str, Any] = key(
        {},
        "agents that an OpenAI-compatible server speaks for: agent.api.<agent>.base_url, .model and others, see docs/training.md",
        type=dict[str, dict[str, Any]],
    )
    orchestra_type: str = key("math", "registered name of the workflow")
    orchestra: dict[str, Any] = key({}, "options of a workflow: agent.orchestra.<type>.<option>", type=dict[str, dict[str, Any]])
    agent_specific_parameters: dict[str, Any] = key(
        {},
        "a list parallel to agent_ids for any key under actor_rollout_ref, e.g. agent.agent_specific_parameters.actor.optim.lr=[1e-6,2e-6]",
    )
    role_policies: dict[str, str] = key(
        {}, "with trainer.val_only=true: agents that speak with another policy than their own, agent -> policy (to swap roles)"
    )
    plugins: list[str] = key(
        [],
        "modules to import before the registries are read (packages may use the entry point group verl_mas.plugins instead)",
        check=texts,
    )


@dataclass
class EnvRolloutConfig:
    n: int = key(8, "episodes of one task in training (the group)", ge=1)
    val_n: int = key(1, "episodes of one task in validation", ge=1)


@dataclass
class EnvConfig:
    env_name: str = key("math", "registered name of the environment")
    max_steps: int = key(1, "most turns of one episode", ge=1)
    history_length: int = key(4, "turns that memory keeps for a prompt", ge=0)
    params: dict[str, Any] = key({}, "options of the environment: env.params.<option>")
    rollout: EnvRolloutConfig = section(EnvRolloutConfig)


SAMPLINGS = ("parallel", "tree")
TREE_SELECTIONS = ("greedy", "first", "random", "softmax")
TREE = "rollout.sampling=tree"


@dataclass
class TreeConfig:
    k: int = key(4, "candidates of a call of an agent that learns", ge=2, effect=TREE)
    k_per_agent: dict[str, int] = key(
        {}, "candidates of the calls of single agents, by name or slug; others that are frozen or behind an API have 1", ge=1, effect=TREE
    )
    select: str = key(
        "greedy", "which candidate the episode goes on with; greedy: the one of the highest reward", choices=TREE_SELECTIONS, effect=TREE
    )
    temperature: float = key(1.0, "weights exp(reward / temperature)", gt=0, effect=(TREE, "rollout.tree.select=softmax"))
    epsilon: float = key(
        0.0,
        "share of calls in which the episode goes on with any candidate, whatever tree.select says",
        ge=0,
        le=1,
        effect=(TREE, "rollout.tree.select!=random"),
    )


@dataclass
class CollectConfig:
    sampling: str = key(
        "parallel", "training episodes: parallel (one reply a call) | tree (AT-GRPO: k candidates a call, one committed)", choices=SAMPLINGS
    )
    tree: TreeConfig = section(TreeConfig)
    max_concurrent_episodes: int = key(
        0, "episodes in flight at the same time; 0 takes 4 * actor_rollout_ref.rollout.max_num_seqs for each rank of a worker group", ge=0
    )
    env_threads: int = key(
        1024, "most threads for environments whose methods block; they are started as the episodes in flight need them", ge=1
    )
    max_failure_rate: float = key(0.1, "share of failed episodes, or of failed candidates of trees, above which the run stops", ge=0, le=1)
    episode_timeout_s: float = key(600.0, "time limit of one episode", gt=0)
    call_timeout_s: float = key(300.0, "time limit of one reply, waiting for a slot of the engine included", gt=0)


@dataclass
class TrainerConfig:
    project_name: str = key("verl-mas", "folder under outputs/")
    experiment_name: str = key("default", "folder under outputs/<project>/")
    default_local_dir: Optional[str] = key(None, "where the run writes; default outputs/<project>/<experiment>")
    total_epochs: int = key(1, "passes over the training tasks", ge=1)
    total_training_steps: int = key(-1, "training steps; -1 follows total_epochs (to evaluate only: trainer.val_only=true)", ge=1, off=-1)
    total_generated_tokens: int = key(
        -1, "stop after the step in which training episodes have this many reply tokens in all; -1 has no such limit", ge=1, off=-1
    )
    save_freq: int = key(-1, "checkpoint every so many steps; -1 only at the end", ge=-1)
    test_freq: int = key(-1, "validate every so many steps; -1 only at the end", ge=-1)
    val_before_train: bool = key(True, "validate before the first step")
    val_only: bool = key(False, "validate and stop")
    max_ckpt_to_keep: int = key(2, "older checkpoints are removed; 0 keeps all", ge=0)
    resume_mode: str = key(
        "auto", "auto (continue this experiment if it has a checkpoint) | disable | resume_path", choices=("auto", "disable", "resume_path")
    )
    resume_from_path: Optional[str] = key(None, "checkpoint folder global_step_N", effect="trainer.resume_mode=resume_path")
    save_hf_model: bool = key(True, "write a Hugging Face copy of every policy into a checkpoint")
    critic_warmup: int = key(0, "first steps that update the critic only", ge=0, effect=CRITIC)
    balance_batch: bool = key(True, "give every rank about the same number of tokens")
    logger: list[str] = key(
        ["console", "jsonl"],
        "where metrics go: console (a line a step), jsonl (`metrics.jsonl`), tensorboard (`tensorboard/`), wandb (also offline)",
        choices=tuple(BACKENDS),
    )
    log_trajectories: int = key(-1, "training episodes a step written to trajectories/; -1 writes all, 0 none, of validation too", ge=-1)
    controller: str = key("ray", "ray | local (one process, for debugging)", choices=("ray", "local"))
    device: str = key("auto", "where models are; auto takes GPUs where there are some", choices=("auto", "cpu", "cuda"))
    nnodes: int = key(1, "nodes", ge=1)
    n_gpus_per_node: int = key(1, "devices on one node: GPUs, or processes of a worker group when the device is cpu", ge=1)
    resource_pool: str = key(
        "shared", "shared: every worker group spans all devices | dedicated: each has devices of its own", choices=("shared", "dedicated")
    )
    pool_sizes: dict[str, int] = key(
        {}, "with dedicated pools: devices of each worker group, by its id; empty shares them out equally", ge=1
    )
    num_threads: int = key(0, "CPU threads of one worker; 0 shares the cores among the worker groups", ge=0, le=1024)
    worker_timeout_s: float = key(1800.0, "time limit of any call to a worker", gt=0, le=LONGEST_S)


@dataclass
class RayInitConfig:
    address: Optional[str] = key(
        None, "address of a running cluster; default RAY_ADDRESS, else a private one is started", effect="trainer.controller=ray"
    )
    num_cpus: Optional[int] = key(None, "CPUs of a private cluster; default all", ge=0, effect="trainer.controller=ray")
    object_store_memory_mb: Optional[int] = key(
        None, "object store of a private cluster; default Ray's own, a share of the memory", ge=1, effect="trainer.controller=ray"
    )


@dataclass
class RunConfig:
    data: DataConfig = section(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    critic: CriticConfig = section(CriticConfig)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    reward: RewardConfig = section(RewardConfig)
    agent: AgentConfig = section(AgentConfig)
    env: EnvConfig = section(EnvConfig)
    rollout: CollectConfig = section(CollectConfig)
    sandbox: SandboxConfig = section(SandboxConfig)
    trainer: TrainerConfig = section(TrainerConfig)
    ray_init: RayInitConfig = section(RayInitConfig)
