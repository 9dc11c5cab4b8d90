"""Keys under `data`, `agent`, `env`, `rollout`, `trainer`, `async_training`, `ray_init`, and the
root of the tree.

Three sections are called `rollout`: the top-level one sets how episodes are collected and the
devices of engines, `env.rollout` the number of episodes per task, and `actor_rollout_ref.rollout`
how an engine samples a reply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from verl.trainer.config.algorithm import AlgorithmConfig
from verl.trainer.config.critic import CRITIC, CriticConfig
from verl.trainer.config.gateway import GATEWAY, GatewayConfig
from verl.trainer.config.model import ACTOR, ActorRolloutRefConfig
from verl.trainer.config.profiler import PROFILED, GlobalProfilerConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.sandbox import PROGRAMS, SandboxConfig
from verl.trainer.config.spec import LONGEST_S, key, section, texts
from verl.utils.names import did_you_mean
from verl.utils.tracking.backend import BACKENDS

# Arguments of a tokenizer's apply_chat_template, and of its template, that the run sets or that are
# not allowed.
TEMPLATE_ARGUMENTS = (
    "self", "conversation", "messages", "tools", "documents", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)  # fmt: skip


def template_kwargs(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if reserved_names := sorted({*TEMPLATE_ARGUMENTS} & {*arguments}):
        raise ValueError(
            f"{reserved_names[0]} is set by the run; expected variables of the model's chat template"
        )
    if not isinstance(arguments.get("chat_template", ""), str):
        raise ValueError("expected a Jinja template as chat_template")
    return arguments


@dataclass
class DataConfig:
    train_files: Any = key(
        [],
        "training tasks: one parquet or jsonl file or a list of them, in verl's schema",
        type=Union[str, list[str]],
        check=texts,
    )
    val_files: Any = key(
        [],
        "validation tasks: one parquet or jsonl file or a list of them",
        type=Optional[Union[str, list[str]]],
        check=texts,
    )
    prompt_key: str = key("prompt", "column with the chat messages of a task")
    train_batch_size: int = key(16, "tasks per training step", ge=1)
    val_batch_size: int = key(0, "tasks validated at a time; 0: all at once", ge=0)
    train_max_samples: int = key(-1, "use only this many training tasks; -1 uses all", ge=1, off=-1)
    val_max_samples: int = key(-1, "use only this many validation tasks; -1 uses all", ge=1, off=-1)
    max_prompt_length: int = key(512, "maximum length of a prompt, in tokens", ge=1)
    max_response_length: int = key(512, "maximum length of a reply, in tokens", ge=1)
    filter_overlong_prompts: bool = key(
        True, "drop (and count) tasks whose prompt is too long; false: they are an error"
    )
    apply_chat_template_kwargs: dict[str, Any] = key(
        {},
        "additional arguments of the chat template, e.g. enable_thinking=false for Qwen3",
        check=template_kwargs,
    )
    shuffle: bool = key(True, "shuffle the training tasks in every epoch")
    tail_window: int = key(
        0,
        "steps within which tasks whose last replies were longest are played together, at least 2; 0: "
        "tasks are drawn at random",
        ge=2,
        off=0,
        effect="async_training.mode=sync",
    )
    seed: int = key(
        0, "random seed of data order, environments, sampling and mini-batch shuffles", ge=0, le=2**32 - 1
    )


@dataclass
class AgentConfig:
    agent_ids: list[str] = key(["Solver Agent", "Verifier Agent"], "names of the team's agents", check=texts)
    model_ids: list[Optional[str]] = key(
        [],
        "model of each agent, parallel to agent_ids, null for an API agent; empty: "
        "actor_rollout_ref.model.path for all",
        check=texts,
    )
    specialization: Any = key(
        "full",
        "prompt (agents with the same model share one policy) | lora (they share a frozen base "
        "model, one adapter per agent) | full (one model per agent); one value or a list parallel "
        "to agent_ids, null for an API agent",
        type=Union[str, list[Optional[str]]],
    )
    adapter_ids: list[Optional[str]] = key(
        [],
        "specialization=lora: adapter name of each agent, parallel to agent_ids; equal names share "
        "an adapter; null: its own",
    )
    frozen: list[str] = key([], "agents (names or slugs) whose models are served unchanged and never trained")
    api: dict[str, Any] = key(
        {},
        "API agents, whose replies an OpenAI-compatible server generates: "
        "agent.api.<agent>.base_url, .model etc., see docs/policies.md",
        type=dict[str, dict[str, Any]],
    )
    orchestra_type: str = key("math", "registered name of the workflow")
    team: Any = key(
        None,
        "with orchestra_type=gateway: the team as module:function, or as a command that each episode "
        'runs, such as [python,my_team.py] or "node team.js"; see docs/frameworks.md',
        type=Optional[Union[str, list[str]]],
        check=texts,
        effect=GATEWAY,
    )
    orchestra: dict[str, Any] = key(
        {}, "options of the workflow: agent.orchestra.<type>.<option>", type=dict[str, dict[str, Any]]
    )
    agent_specific_parameters: dict[str, Any] = key(
        {},
        "values per agent (list parallel to agent_ids) of any key under actor_rollout_ref, "
        "e.g. agent.agent_specific_parameters.actor.optim.lr=[1e-6,2e-6]",
    )
    role_policies: dict[str, str] = key(
        {},
        "with trainer.val_only=true: agent -> another policy than its own that generates its "
        "replies (to swap roles)",
    )
    plugins: list[str] = key(
        [],
        "modules that are imported first and may register components (packages may use the entry "
        "point group verl_mas.plugins instead)",
        check=texts,
    )


@dataclass
class EnvRolloutConfig:
    """`env.rollout`: episodes per task (not `rollout`, their collection, nor
    `actor_rollout_ref.rollout`, sampling of a reply).
    """

    n: int = key(8, "episodes per task in training (group size)", ge=1)
    val_n: int = key(1, "episodes per task in validation", ge=1)


WORKERS = "env.workers.num>0"


@dataclass
class EnvWorkersConfig:
    num: int = key(
        0, "worker processes that environments run in; 0: in the driver, on threads", ge=0, always=True
    )
    cpus: float = key(1.0, "Ray CPUs reserved for each worker", ge=0, effect="trainer.controller=ray")
    memory_gib: Optional[float] = key(
        None,
        "resident memory of one worker, in GiB, above which it is replaced and its episodes are "
        "played again; null: half of its node's memory / env.workers.num, at least 2; 0: no limit",
        ge=0,
    )


@dataclass
class EnvConfig:
    env_name: str = key("math", "registered name of the environment")
    max_steps: int = key(1, "maximum number of turns per episode", ge=1)
    history_length: int = key(4, "number of past turns that a prompt contains", ge=0)
    params: dict[str, Any] = key({}, "options of the environment: env.params.<option>")
    rollout: EnvRolloutConfig = section(EnvRolloutConfig)
    workers: EnvWorkersConfig = section(EnvWorkersConfig, effect=WORKERS)


SAMPLINGS = ("parallel", "tree")
TREE_SELECTIONS = ("greedy", "first", "random", "softmax")
TREE = "rollout.sampling=tree"
TREE_RETURNS = ("step", "committed")
COMMITTED = "rollout.tree.returns=committed"
OWN_DEVICES = "rollout.n_gpus_per_node>0"
START_CHECKS = ("engines", "memory")
RESUME_MODES = ("auto", "disable")
EXPECTED_MODE = "auto, disable or a checkpoint folder .../global_step_N"


@dataclass
class TreeConfig:
    k: int = key(4, "candidates per call of a trained agent", ge=2)
    k_per_agent: dict[str, int] = key(
        {},
        "candidates per call of single agents, by name or slug; frozen and API agents that are not "
        "listed have 1",
        ge=1,
    )
    select: str = key(
        "greedy",
        "choice of the candidate that the episode continues with; greedy: the one with the highest reward",
        choices=TREE_SELECTIONS,
    )
    temperature: float = key(
        1.0,
        "candidates are sampled with probability proportional to exp(reward / temperature)",
        gt=0,
        effect="rollout.tree.select=softmax",
    )
    epsilon: float = key(
        0.0,
        "fraction of calls in which a uniformly random candidate is chosen instead",
        ge=0,
        le=1,
        effect="rollout.tree.select!=random",
    )
    returns: str = key(
        "step",
        "return of a candidate: step (of its own action; the estimator compares all candidates) | "
        "committed (the estimator sees the committed replies as an episode, and the candidates of "
        "a call are compared by the reward of their own action)",
        choices=TREE_RETURNS,
    )
    candidate_weight: float = key(
        1.0,
        "weight of the comparison of a call's candidates in the advantage; 0: only committed "
        "replies are trained",
        ge=0,
        effect=COMMITTED,
    )


@dataclass
class CollectConfig:
    """`rollout`: collection of episodes, devices of engines (not `env.rollout`, episodes per task,
    nor `actor_rollout_ref.rollout`).
    """

    sampling: str = key(
        "parallel",
        "training episodes: parallel (one reply per call) | tree (AT-GRPO: k candidates per call, "
        "one of them committed)",
        choices=SAMPLINGS,
    )
    tree: TreeConfig = section(TreeConfig, effect=TREE)
    repeat_calls: dict[str, int] = key(
        {},
        "training episodes of a group that share each reply of an agent, by its name or slug",
        ge=2,
        effect="rollout.sampling=parallel",
    )
    max_concurrent_episodes: int = key(
        0,
        "maximum number of concurrent episodes; 0: 4 * actor_rollout_ref.rollout.max_num_seqs per "
        "device of the engines",
        ge=0,
    )
    max_failure_rate: float = key(
        0.1,
        "fraction of failed episodes, or of failed candidates of trees, above which the run stops",
        ge=0,
        le=1,
    )
    episode_timeout_s: float = key(
        600.0,
        "time limit of one episode, in seconds; of the time that an engine takes for a reply only "
        "the first counts",
        gt=0,
    )
    call_timeout_s: float = key(
        300.0,
        "seconds that a call or a score waits for an engine that samples no token and scores "
        "nothing, for the reply of an agent's server, or for a score of reward.model.api while it gives no other",
        gt=0,
    )
    nnodes: int = key(1, "number of nodes with devices of the engines' own", ge=1, effect=OWN_DEVICES)
    n_gpus_per_node: int = key(
        0,
        "devices of the engines' own per node, beside those of trainer.n_gpus_per_node, which then "
        "train only; 0: engines share the devices of the trainer",
        ge=0,
    )


def _device_counts(sizes: Mapping[str, int | list[int]]) -> Mapping[str, int | list[int]]:
    """Return `sizes`. Raise ValueError unless each is a number above 0, or one beside that of the
    engines.
    """
    for group, size in sizes.items():
        if size == 0 or (isinstance(size, list) and (len(size) != 2 or size[1] < 1)):
            raise ValueError(
                f"expected at least 1 device for {group}, or [6,2]: those of the trainer and of the engines"
            )
    return sizes


def _resumed(value: str) -> str:
    """Return `value`. Raise ValueError unless it is a mode, or a path with a folder's name."""
    if value not in RESUME_MODES and "/" not in value and not value.startswith("global_step_"):
        raise ValueError(f"expected {EXPECTED_MODE}{did_you_mean(value, RESUME_MODES)}")
    return value


@dataclass
class TrainerConfig:
    project_name: str = key("verl-mas", "project name: folder under outputs/")
    experiment_name: str = key("default", "experiment name: folder under outputs/<project>/")
    default_local_dir: Optional[str] = key(
        None, "output folder of the run; default: outputs/<project>/<experiment>"
    )
    total_epochs: int = key(1, "epochs over the tasks", ge=1, effect="trainer.total_training_steps=-1")
    total_training_steps: int = key(
        -1,
        "training steps; -1: as many as total_epochs needs (to evaluate only: trainer.val_only=true)",
        ge=1,
        off=-1,
    )
    total_generated_tokens: int = key(
        -1,
        "stop after the step in which the training episodes of the run reach this many reply "
        "tokens in total; -1: no limit",
        ge=1,
        off=-1,
    )
    save_freq: int = key(-1, "steps between checkpoints; -1: only at the end", ge=-1)
    test_freq: int = key(-1, "steps between validations; -1: only at the end", ge=-1)
    val_before_train: bool = key(True, "validate before the first step")
    val_only: bool = key(False, "validate and stop")
    max_ckpt_to_keep: int = key(2, "number of latest checkpoints to keep; 0 keeps all", ge=0)
    resume_mode: str = key(
        "auto",
        "auto (continue this experiment if it has a checkpoint) | disable | a checkpoint folder "
        ".../global_step_N, from which the run continues",
        check=_resumed,
    )
    checks: list[str] = key(
        [*START_CHECKS],
        "checks without which a run does not start: engines (log-probs of engines and trainer are "
        "compared before the first step, before and after an update that changes every weight and is "
        "undone), memory (it is counted; budgets that are not set become what fits)",
        choices=START_CHECKS,
    )
    save_hf_model: bool = key(True, "write a Hugging Face copy of every policy into a checkpoint")
    critic_warmup: int = key(0, "number of first steps that update only the critic", ge=0, effect=CRITIC)
    logger: list[str] = key(
        ["console", "jsonl"],
        "destinations of metrics: console (one line per step), jsonl (`metrics.jsonl`), "
        "tensorboard (`tensorboard/`), wandb (also offline), trackio (local)",
        choices=tuple(BACKENDS),
    )
    log_trajectories: int = key(
        -1,
        "training episodes per step written to trajectories/, in whole groups drawn at random; -1: "
        "all; 0: none, also of validation",
        ge=-1,
    )
    log_tokens: int = key(
        0,
        "rows of each step, drawn at random, whose log-prob of every token is recorded before and after "
        "the update (credit/), by one more forward pass of these rows",
        ge=0,
    )
    controller: str = key(
        "ray", "controller of the workers: ray | local (one process, for debugging)", choices=("ray", "local")
    )
    device: str = key(
        "auto", "device of models; auto: GPUs if there are any", choices=("auto", "cpu", "cuda")
    )
    nnodes: int = key(1, "number of nodes; those of engines with devices of their own: rollout.nnodes", ge=1)
    n_gpus_per_node: int = key(
        1, "devices per node: GPUs, or processes of a worker group if the device is cpu", ge=1
    )
    resource_pool: str = key(
        "shared",
        "shared: every worker group spans all devices | dedicated: each has its own devices",
        choices=("shared", "dedicated"),
    )
    pool_sizes: dict[str, Any] = key(
        {},
        "with dedicated pools: number of devices of each worker group, by its id; with "
        "rollout.n_gpus_per_node>0 [6,2] has those of the trainer (0 of a group that is not trained) "
        "and those of its engines; empty, and of engines without a number: equal numbers",
        type=dict[str, Union[int, list[int]]],
        ge=0,
        check=_device_counts,
    )
    num_threads: int = key(
        0,
        "CPU threads per worker, engines included; 0 divides the cores among the worker groups",
        ge=0,
        le=1024,
    )
    worker_timeout_s: float = key(
        1800.0, "time limit of any call to a worker, in seconds", gt=0, le=LONGEST_S
    )


ASYNC_MODES = ("sync", "one_step_off", "fully_async")
FULLY_ASYNC = "async_training.mode=fully_async"
OLDER_WEIGHTS = "staleness_threshold>0, trigger_parameter_sync_step>1 or batch_timeout_s>0"
SEVERAL_STEPS = "a whole model with async_training.trigger_parameter_sync_step>1"
LANES = "policies that train in several lanes (worker groups of their own, algorithm.group_by with agent_id; see docs/async.md)"


@dataclass
class AsyncTrainingConfig:
    mode: str = key(
        "sync",
        "sync (collect, then train) | one_step_off (the next step's episodes are collected during "
        "the updates, with weights that are one step older) | fully_async (episodes are collected "
        "all the time); samples of older weights need algorithm.rollout_correction",
        choices=ASYNC_MODES,
        always=True,
    )
    staleness_threshold: float = key(
        1.0,
        "tasks that may be in progress beyond those of the next trigger_parameter_sync_step steps, "
        "as a share of these; 0 with trigger_parameter_sync_step=1 is synchronous training",
        ge=0,
        le=100,
    )
    trigger_parameter_sync_step: int = key(
        1,
        "training steps between two transfers of weights to the engines, at most; of adapters always 1",
        ge=1,
    )
    parameter_sync: str = key(
        "lazy",
        "when the weights of a whole model are sent: lazy (every trigger_parameter_sync_step "
        "steps) | eager (after every step) | adaptive (after trigger_parameter_sync_step steps, or "
        "when the next batch is complete already); an adapter is sent alone, after every step",
        choices=("lazy", "eager", "adaptive"),
        effect=SEVERAL_STEPS,
    )
    partial_rollout: bool = key(
        True,
        "replies in progress go on with new weights; false: new weights of a policy wait until its "
        "replies in progress have ended, and its new replies wait for the weights",
    )
    max_off_policy_threshold: int = key(
        4,
        "largest number of steps by which the weights that began an episode may be older than "
        "those that it trains",
        ge=0,
        effect=OLDER_WEIGHTS,
    )
    max_off_policy_strategy: str = key(
        "wait",
        "what a step does so that no task exceeds max_off_policy_threshold: wait for it | drop those that do",
        choices=("wait", "drop"),
        effect=OLDER_WEIGHTS,
    )
    max_task_failures: int = key(
        3,
        "groups of a task that fail in a row before it is drawn no more; 0: no limit",
        ge=0,
    )
    max_lead: int = key(
        1,
        "steps by which a policy may be ahead of one that is still updated, if it does not depend "
        "on it; 0: all end a step together",
        ge=0,
        effect=LANES,
    )
    batch_timeout_s: float = key(
        0.0,
        "seconds after which a step trains on those tasks that are complete, if they are fewer "
        "than data.train_batch_size; 0: never",
        ge=0,
        le=LONGEST_S,
    )
    least_batch_size: int = key(
        1,
        "tasks of a step that has waited for batch_timeout_s, at least",
        ge=1,
        effect="async_training.batch_timeout_s>0",
    )
    per_policy: dict[str, Any] = key(
        {},
        "staleness_threshold, trigger_parameter_sync_step and max_off_policy_threshold of one "
        "policy: async_training.per_policy.<policy>.staleness_threshold=0.5",
        type=dict[str, dict[str, Any]],
    )

    @property
    def fresh(self) -> bool:
        """Whether every sample is of the weights that it trains."""
        if self.mode != "fully_async":
            return self.mode == "sync"
        waits = all(
            values["staleness_threshold"] == 0 and values["trigger_parameter_sync_step"] == 1
            for values in (vars(self), *(vars(self) | dict(v or {}) for v in self.per_policy.values()))
        )
        return waits and not self.batch_timeout_s


@dataclass
class RayInitConfig:
    address: Optional[str] = key(
        None,
        "address of a running Ray cluster; default: RAY_ADDRESS, else a private cluster is started",
        effect="trainer.controller=ray",
    )
    num_cpus: Optional[int] = key(
        None, "number of CPUs of a private cluster; default: all", ge=0, effect="trainer.controller=ray"
    )
    object_store_memory_mb: Optional[int] = key(
        None,
        "object store of a private cluster in MiB; default: Ray's, a fraction of the memory",
        ge=1,
        effect="trainer.controller=ray",
    )
    env_vars: dict[str, str] = key(
        {},
        "environment variables of all workers, on every node: ray_init.env_vars.NCCL_DEBUG=INFO",
        effect="trainer.controller=ray",
    )


@dataclass
class RunConfig:
    data: DataConfig = section(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    critic: CriticConfig = section(CriticConfig, effect=CRITIC, like=ACTOR)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    reward: RewardConfig = section(RewardConfig)
    agent: AgentConfig = section(AgentConfig)
    env: EnvConfig = section(EnvConfig)
    rollout: CollectConfig = section(CollectConfig)
    gateway: GatewayConfig = section(GatewayConfig, effect=GATEWAY)
    sandbox: SandboxConfig = section(SandboxConfig, part=PROGRAMS)
    trainer: TrainerConfig = section(TrainerConfig)
    async_training: AsyncTrainingConfig = section(AsyncTrainingConfig, effect=FULLY_ASYNC)
    global_profiler: GlobalProfilerConfig = section(GlobalProfilerConfig, effect=PROFILED)
    ray_init: RayInitConfig = section(RayInitConfig)
