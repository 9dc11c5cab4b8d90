"""Plays the episodes of a step concurrently and returns one batch."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agent_system.agent import BaseAgent, own_data
from agent_system.env_caller import EnvCaller, EnvHandle
from agent_system.env_workers import EnvWorkers
from agent_system.env_workers.messages import EnvWorkerError, innermost_line
from agent_system.environment import BaseEnv, Task
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory, SummaryMemory
from agent_system.options import build_options
from agent_system.orchestra import BaseOrchestra
from agent_system.record import EpisodeRecord, Sample
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.reward import assign_rewards
from agent_system.reward.model import COUNTS, ReplyScorer, RewardModel
from agent_system.reward.scorer import EpisodeScorer
from agent_system.rollout.batch import build_batch
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.call import AgentRuntime, EpisodeSpec
from agent_system.rollout.metrics import collect_metrics
from agent_system.rollout.prompt import PromptBuilder
from agent_system.rollout.remote import MessageBuilder, RemoteBinding
from agent_system.rollout.runner import EpisodeRunner
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import CollectorSettings
from agent_system.rollout.tied_candidates import TiedCandidateMonitor
from agent_system.rollout.tokens import Encoder
from agent_system.rollout.tool_loop import ToolPromptBuilder, check_tool_agents
from agent_system.rollout.transcript import joint_prompts
from agent_system.rollout.tree import check_tree_env
from agent_system.threads import DaemonExecutor
from agent_system.tools.agent import ToolAgent
from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX, EngineGoneError

logger = logging.getLogger(__name__)


class TooManyFailuresError(RuntimeError):
    """More episodes, or candidates of trees, failed than `rollout.max_failure_rate` allows."""


@dataclass(frozen=True, repr=False)
class CollectResult:
    """The result of one collection. It has no generated repr, because asyncio computes the repr of a task's result, with all its texts.

    Attributes:
        batch: one row per trained sample, ordered by task, episode, call and candidate; None when there is none.
        episodes: all episodes in the order of tasks, failed ones included.
        metrics: see `collect_metrics`.
    """

    batch: DataProto | None
    episodes: list[EpisodeRecord]
    metrics: dict[str, float]


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of episodes.

    Attributes:
        cls: the environment's class.
        config: its options, an instance of `cls.config_class`.
    """

    cls: type[BaseEnv]
    config: Any = field(default=None)

    def make(self, seed: int) -> BaseEnv:
        """Return a new environment."""
        return self.cls(self.config, seed=seed)


class Collector:
    """Plays episodes of one orchestra in one class of environment."""

    def __init__(
        self,
        orchestra: BaseOrchestra,
        agents: Mapping[str, BaseAgent],
        env: EnvFactory,
        bindings: Mapping[str, AgentBinding | RemoteBinding],
        settings: CollectorSettings,
        workers: EnvWorkers | None = None,
        reward_model: RewardModel | None = None,
    ) -> None:
        """Bind the agents to their policies and the environment to its options.

        Episodes' environments run in `workers`, if given; `reward_model` is the model of `settings.reward.model`.

        Raises:
            AgentSystemError: an agent of the orchestra has no binding, the environment does not support tree sampling, the orchestra
                rejects the team, or a reward function cannot be loaded or called.
        """
        if settings.tree is not None:
            check_tree_env(env.cls, settings.reward)
        missing = [a for a in orchestra.agents if a not in bindings]
        if missing:
            raise AgentSystemError(
                f"{type(orchestra).__name__} needs the agents {missing}, which no policy serves; "
                f"agent.agent_ids lists: {', '.join(bindings) or 'none'}"
            )
        orchestra.check(tuple(bindings), env.make, forks=settings.tree is not None)
        if issubclass(orchestra.memory_class, SummaryMemory):
            raise AgentSystemError(
                f"{type(orchestra).__name__}.memory_class is {orchestra.memory_class.__name__}, which an agent writes; make it the "
                "memory_class of an agent"
            )
        check_tool_agents(agents, bindings, branches=settings.tree is not None, sequences=settings.tool_sequences)
        self.orchestra = orchestra
        self.env = env
        self.settings = settings
        self._workers = workers
        self._sandbox_failures: Sequence[float] = ()
        self._tied_candidates = TiedCandidateMonitor(env.cls)
        self.runtimes = _runtimes(agents, bindings)
        for runtime in self.runtimes.values():
            runtime.agent.fork()  # a state that cannot be copied is an error before a model loads
        self._shared = {name: own_data(r.agent) for name, r in self.runtimes.items() if not r.agent.stateful}
        self._model = None if reward_model is None else ReplyScorer(settings.reward.model, reward_model, list(self.runtimes))
        self._scorer = EpisodeScorer(
            settings.reward, list(self.runtimes), settings.env_threads, self._beginning, self._model, settings.tree_returns
        )

    @classmethod
    def from_names(
        cls,
        *,
        orchestra_type: str,
        env_name: str,
        bindings: Mapping[str, AgentBinding | RemoteBinding],
        settings: CollectorSettings,
        orchestra_options: Mapping[str, Any] | None = None,
        env_params: Mapping[str, Any] | None = None,
        workers: EnvWorkers | None = None,
        reward_model: RewardModel | None = None,
    ) -> Collector:
        """Build a collector from registered names: the team is `bindings`, its agents looked up in the orchestra's scope first.

        Raises:
            AgentSystemError: an unknown name, an unknown option, or an agent of the orchestra without a binding.
        """
        orchestra = OrchestraRegistry.get(orchestra_type, env=env_name).from_options(orchestra_options, orchestra_type)
        agents = {name: AgentRegistry.get(name, orchestra=orchestra_type, env=env_name)(name, orchestra.config) for name in bindings}
        env_cls = EnvRegistry.get(env_name)
        env = EnvFactory(env_cls, build_options(env_cls.config_class, env_params, "env.params"))
        return cls(orchestra, agents, env, bindings, settings, workers, reward_model)

    def first_prompt_lengths(self, agent_id: str, tasks: Sequence[Task]) -> list[int]:
        """Return for every task the tokens of an agent's first prompt: its templates with the task, without team context or memory."""
        runtime = self.runtimes[agent_id]
        if not isinstance(runtime.prompts, PromptBuilder):
            return [0] * len(tasks)
        memory = self.orchestra.memory_class(self.settings.history_length)
        variables = [{"env_prompt": task.prompt, "step": 1} for task in tasks]
        if not runtime.agent.stateful:
            return runtime.prompts.first_lengths(variables, memory)
        return [self._first_length(runtime, task, own, memory) for task, own in zip(tasks, variables, strict=True)]

    def _first_length(self, runtime: AgentRuntime, task: Task, variables: Mapping[str, Any], memory: Memory) -> int:
        """Return the tokens of the first prompt of an agent with state; 0 if its `start` fails, which will cost the task's episodes.

        Raises AgentSystemError when the state after `start` cannot be copied.
        """
        try:
            begun = runtime.begin(task, self.settings.history_length)
        except Exception as error:  # whatever a user's class raises
            logger.warning("start() of %r failed for task %s: %r", runtime.agent.agent_id, task.task_id, error)
            return 0
        begun.agent.fork()
        assert isinstance(begun.prompts, PromptBuilder)
        return begun.prompts.first_lengths([variables], memory if begun.agent.memory is None else begun.agent.memory)[0]

    async def collect(
        self, tasks: Sequence[Task], n: int, *, step: int, validate: bool = False, greedy: bool = False, attempt: int = 0
    ) -> CollectResult:
        """Play `n` episodes of every task.

        The result depends on tasks, seeds and weights, never on which episode ends first. An episode whose environment worker died is
        played once more; if that worker dies as well, it has failed.

        Args:
            tasks: the step's tasks; a task that is listed twice makes two groups.
            n: episodes per task (the group).
            step: training step; part of group ids and seeds.
            validate: use `val_sampling`.
            greedy: decode greedily; group ids end in `GREEDY_SUFFIX`.
            attempt: number of this collection in the step, from 0; each has its own group ids and seeds.

        Raises:
            EngineGoneError: an engine's process died.
            TooManyFailuresError: the share of failed episodes, or of candidates left out of the trees of the other episodes, is above
                `max_failure_rate`; the message groups the causes.
            AgentSystemError: a local reward outside `reward.propagation.local_range`.
        """
        with _rare_garbage_collection():
            played = await self._play(_specs(tasks, n, step, validate, greedy, attempt))
            self._warn_of_shared_state()
            result = self._result(played, self.settings.for_validation() if validate else self.settings)
            if self._model is not None:
                result = replace(result, metrics=result.metrics | self._model.take_counts())
            if validate:
                return result
            if self.settings.tree_returns == "step":  # otherwise agents learn from the rewards of `step`, and from ties
                self._tied_candidates.update(result.episodes)
            return result

    def join(self, results: Sequence[CollectResult]) -> CollectResult:
        """Return several training collections as one: rows and episodes in their order, rewards and metrics computed over all."""
        joined = self._result([e for result in results for e in result.episodes], self.settings)
        counts = Counter[str]()
        for result in results:
            counts.update({name: value for name, value in result.metrics.items() if name.startswith(COUNTS)})
        return replace(joined, metrics=joined.metrics | counts)

    def _result(self, played: Sequence[EpisodeRecord], settings: CollectorSettings) -> CollectResult:
        records, metrics = assign_rewards(played, settings.reward, settings.invalid_action_penalty, settings.tree_returns)
        prompts = None
        if settings.joint_prompt_length:
            local = [runtime.binding for runtime in self.runtimes.values() if isinstance(runtime.binding, AgentBinding)]
            tokenizers = {binding.wg_id: binding.tokenizer for binding in local}
            prompts = joint_prompts(records, tokenizers, settings.joint_prompt_length)
        metrics = collect_metrics(records, list(self.runtimes), self._branching(), self._sandbox_failures) | metrics
        token_rewards, greedy_baselines = settings.reward.granularity == "token", bool(settings.greedy_baselines)
        batch = build_batch(records, prompts, greedy_baselines=greedy_baselines, token_rewards=token_rewards)
        return CollectResult(batch, records, metrics)

    def _warn_of_shared_state(self) -> None:
        """Warn once of each agent that the first episodes have changed although all episodes share it."""
        for name, before in self._shared.items():
            after = own_data(self.runtimes[name].agent)
            if changed := sorted(key for key in before | after if before.get(key) != after.get(key)):
                logger.warning(
                    "agent %r changed its attribute %s during an episode, but all episodes share one agent that does not override start(), "
                    "those of a validation too; set the attribute in start(self, task) to give every episode its own",
                    name, ", ".join(map(repr, changed)),
                )  # fmt: skip
        self._shared = {}

    def _branching(self) -> list[str]:
        """Return the agents whose calls have several candidates."""
        return [name for name, runtime in self.runtimes.items() if self.settings.candidates(name, runtime.binding.trained) > 1]

    async def _play(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeRecord]:
        records: list[EpisodeRecord | None] = [None] * len(specs)
        causes: Counter[str] = Counter()
        left_out: Counter[str] = Counter()
        allowed = self.settings.max_failure_rate * len(specs)
        running: dict[asyncio.Task[EpisodeRecord], tuple[int, EpisodeRunner]] = {}
        finished: asyncio.Queue[asyncio.Task[EpisodeRecord]] = asyncio.Queue()
        waiting = deque(enumerate(specs))
        lost_before: set[int] = set()
        with DaemonExecutor(self.settings.env_threads) as threads:
            try:
                while waiting or running:
                    while waiting and len(running) < self.settings.max_concurrent_episodes:
                        index, spec = waiting.popleft()
                        episode = EpisodeRunner(spec, self.orchestra, self.runtimes, self._env(spec, threads), self.settings, self._model)
                        task = asyncio.create_task(self._episode(episode), name=spec.traj_uid)
                        running[task] = (index, episode)
                        task.add_done_callback(finished.put_nowait)
                    task = await finished.get()
                    index, episode = running.pop(task)
                    _raise_if_engine_gone(task)
                    if _lost_its_worker(task) and index not in lost_before:  # with the same seeds it is the same episode
                        lost_before.add(index)
                        waiting.append((index, episode.spec))
                        continue
                    cause = _cause(task)
                    records[index] = task.result() if cause is None else episode.record(cause)
                    if cause is None:
                        left_out += episode.left_out
                    else:
                        causes[cause] += 1
                        logger.warning("episode %s left out: %s", task.get_name(), cause)
                        if causes.total() > allowed:
                            raise TooManyFailuresError(_grouped(causes, len(specs), "episodes", self.settings.max_failure_rate))
            finally:
                await _cancel(running)
                if self._model is not None:
                    await self._model.close()
                for runtime in self.runtimes.values():
                    if isinstance(runtime.binding, RemoteBinding):
                        await runtime.binding.endpoint.close()
        if self._workers is not None:
            self._sandbox_failures = await self._workers.sandbox_failures()
        whole = [r for r in records if r is not None]
        tried = left_out.total() + sum(len(r.samples) for r in whole if not r.failed)
        if left_out.total() > self.settings.max_failure_rate * tried:
            raise TooManyFailuresError(_grouped(left_out, tried, "candidates", self.settings.max_failure_rate))
        return whole

    def _beginning(self, sample: Sample, count: int) -> str:
        """Return the text of the first `count` tokens of a reply."""
        beginning = replace(sample.generation, token_ids=sample.generation.token_ids[:count])
        return self.runtimes[sample.agent_id].binding.text_of(beginning)

    async def _episode(self, episode: EpisodeRunner) -> EpisodeRecord:
        """Play an episode and call the reward functions; an error of these costs the episode as any other."""
        await episode.run()
        record = episode.record()
        return await self._scorer.score(record)

    def _env(self, spec: EpisodeSpec, threads: DaemonExecutor) -> EnvHandle:
        seed = stable_seed(self.settings.seed, spec.step, spec.validate, spec.env_uid)
        return EnvCaller(self.env.make(seed), threads) if self._workers is None else self._workers.env(seed)


def _runtimes(agents: Mapping[str, BaseAgent], bindings: Mapping[str, AgentBinding | RemoteBinding]) -> dict[str, AgentRuntime]:
    runtimes: dict[str, AgentRuntime] = {}
    encoders: dict[int, Encoder] = {}
    for name, agent in agents.items():
        binding = bindings[name]
        if isinstance(binding, RemoteBinding):
            runtimes[name] = AgentRuntime(agent, binding, MessageBuilder(agent))
            continue
        tokenizer = binding.tokenizer
        encoder = encoders.get(id(tokenizer)) or encoders.setdefault(id(tokenizer), Encoder(tokenizer))
        arguments = (tokenizer, binding.max_prompt_length, binding.template_kwargs, encoder)
        builder = ToolPromptBuilder(agent, *arguments) if isinstance(agent, ToolAgent) else PromptBuilder(agent, *arguments)
        runtimes[name] = AgentRuntime(agent, binding, builder)
    return runtimes


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely: the objects of a collection live until its end, and scanning them repeatedly costs a quarter of the CPU."""
    before = gc.get_threshold()
    if before[0] == 0:
        yield
        return
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _specs(tasks: Sequence[Task], n: int, step: int, validate: bool, greedy: bool, attempt: int) -> list[EpisodeSpec]:
    if n < 1:
        raise AgentSystemError(f"the number of episodes per task must be at least 1, found {n}")
    seen: Counter[str] = Counter()
    prefix = f"{'val' if validate else 'step'}{step}{f'.{attempt}' if attempt else ''}"
    specs = []
    for task in tasks:
        uid = f"{prefix}/{task.task_id}/{seen[task.task_id]}{GREEDY_SUFFIX if greedy else ''}"
        seen[task.task_id] += 1
        specs += [EpisodeSpec(task, uid, index, step, validate, greedy) for index in range(n)]
    return specs


def _raise_if_engine_gone(task: asyncio.Task[EpisodeRecord]) -> None:
    """Raise the episode's EngineGoneError, which ends the whole collection."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, EngineGoneError):
        raise error


def _lost_its_worker(task: asyncio.Task[EpisodeRecord]) -> bool:
    """Return whether an episode ended because the worker process of its environment did."""
    return not task.cancelled() and isinstance(task.exception(), EnvWorkerError)


def _cause(task: asyncio.Task[EpisodeRecord]) -> str | None:
    """Return why an episode failed, with the innermost line of code, or None."""
    if task.cancelled():
        return "CancelledError: the episode cancelled itself"
    error = task.exception()
    if error is None:
        return None
    line = innermost_line(error)
    return f"{type(error).__name__}: {error}{f' ({line})' if line else ''}"


def _grouped(causes: Counter[str], total: int, of: str, allowed: float) -> str:
    lines = [f"  {count} x {cause}" for cause, count in causes.most_common(10)]
    return f"{causes.total()} of {total} {of} failed, more than rollout.max_failure_rate={allowed:g} allows:\n" + "\n".join(lines)


async def _cancel(tasks: Mapping[asyncio.Task[EpisodeRecord], Any]) -> None:
    """Cancel running tasks, so that none outlives the collection."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(list(tasks), timeout=10.0)
