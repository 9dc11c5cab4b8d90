"""Plays the episodes of a step concurrently and returns one batch."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.agent import BaseAgent, own_data
from agent_system.env_caller import EnvCaller, EnvHandle
from agent_system.environment import BaseEnv, Task
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory
from agent_system.options import build_options
from agent_system.orchestra import BaseOrchestra, check_members
from agent_system.record import EpisodeRecord, Sample
from agent_system.registry import EnvRegistry, make_team
from agent_system.reward import MODEL_COUNTS, assign_rewards
from agent_system.reward.scorer import EpisodeScorer
from agent_system.rollout.batch import build_batch
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.call import AgentRuntime, EpisodeSpec
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.episode import Episode
from agent_system.rollout.metrics import collect_metrics
from agent_system.rollout.player import EpisodePlayer
from agent_system.rollout.prompt import PromptBuilder
from agent_system.rollout.remote import MessageBuilder, RemoteBinding
from agent_system.rollout.sampled_call import sampled_call
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import CollectorSettings
from agent_system.rollout.tokens import Encoder
from agent_system.threads import DaemonExecutor
from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX

if TYPE_CHECKING:
    from agent_system.env_workers import EnvWorkers
    from agent_system.reward.model import ReplyScorer, RewardModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class CollectResult:
    """The result of one collection. It has no generated repr, because asyncio computes the repr of
    a task's result, with all its texts.

    Attributes:
        batch: one row per trained sample, ordered by task, episode, call and candidate; None when
            there is none.
        episodes: all episodes in the order of tasks, failed ones included.
        metrics: see `collect_metrics`.
        unshared: with `rollout.repeat_calls`, the episodes whose replies have no mean of several
            episodes yet, which `Collector.join` needs; else None.
    """

    batch: DataProto | None
    episodes: list[EpisodeRecord]
    metrics: dict[str, float]
    unshared: list[EpisodeRecord] | None = None


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


@dataclass(frozen=True)
class GroupPlayer:
    """Plays groups of training episodes one by one; made by `Collector.groups`."""

    _collector: Collector
    _player: EpisodePlayer

    @property
    def limit_s(self) -> float:
        """See `EpisodePlayer.end_s`."""
        return self._player.end_s

    @property
    def in_time(self) -> bool:
        """See `EpisodePlayer.in_time`."""
        return self._player.in_time

    async def play(
        self, task: Task, n: int, *, step: int, attempt: int = 0, number: int = 0, greedy: bool = False
    ) -> list[EpisodeRecord]:
        """Play `n` episodes of a task: those that `Collector.collect` plays for the `number`-th
        appearance of the task.

        Raises as `EpisodePlayer.play` does.
        """
        return await self._player.play(
            _group(task, n, _prefix(step, attempt), number, step, validate=False, greedy=greedy)
        )

    def uid(self, task: Task, *, step: int, attempt: int, number: int) -> str:
        """Return the id of a group that `play` plays."""
        return _uid(task, _prefix(step, attempt), number)

    def set_open(self, to_more: bool) -> None:
        """See `EpisodePlayer.set_open`."""
        self._player.set_open(to_more)

    def rows(self, episodes: Sequence[EpisodeRecord]) -> DataProto | None:
        """Return the batch of `result`, as far as it can be known without the other groups of the
        step.
        """
        return self._collector._result(episodes, self._collector.settings).batch

    async def result(self, episodes: Sequence[EpisodeRecord]) -> CollectResult:
        """Return the result of whole groups, which is that of `Collector.collect` for the same
        episodes.
        """
        return await self._collector._collected(episodes, self._player)


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

        Episodes' environments run in `workers`, if given; `reward_model` is the model of
        `settings.reward.model`.

        Raises:
            AgentSystemError: an agent of the orchestra has no binding, the environment does not
                support tree sampling, the orchestra rejects the team, or a reward function cannot
                be loaded or called.
        """
        _check_team(orchestra, agents, env, bindings, settings)
        if settings.tree is not None:
            from agent_system.rollout.tied_candidates import TiedCandidateMonitor  # of trees alone

            self._tied_candidates = TiedCandidateMonitor(env.cls)
        self.orchestra = orchestra
        self.env = env
        self.settings = settings
        self._workers = workers
        self._players = set[EpisodePlayer]()
        self._sandbox_failures: Sequence[float] = ()
        if settings.repeat_calls:
            from agent_system.rollout.shared_replies import with_shared_replies  # of this key alone

            bindings = with_shared_replies(bindings, settings.repeat_calls)
        self.runtimes = _runtimes(agents, bindings)
        for runtime in self.runtimes.values():
            # a state that cannot be copied is an error before a model loads
            runtime.agent.fork()
        self._shared = {name: own_data(r.agent) for name, r in self.runtimes.items() if not r.agent.stateful}
        # of training and of validation, which count apart
        self._models: dict[bool, ReplyScorer] = {}
        if reward_model is not None:
            # scores of a reward model, which most runs do not have
            from agent_system.reward.model import ReplyScorer

            model = ReplyScorer(
                settings.reward.model, reward_model, list(self.runtimes), settings.call_timeout_s
            )
            self._models = {False: model, True: model.apart()}
        self._scorer = EpisodeScorer(
            settings.reward,
            list(self.runtimes),
            settings.env_threads,
            self._beginning,
            settings.tree_returns,
            settings.experiment_name,
        )

    @property
    def in_progress(self) -> int:
        """Number of episodes that are played now; may be read by any thread."""
        return sum(player.playing for player in tuple(self._players))

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
        """Build a collector from registered names: the team is `bindings`, its agents looked up in
        the orchestra's scope first.

        Raises:
            AgentSystemError: an unknown name, an unknown option, or an agent of the orchestra
                without a binding.
        """
        orchestra, agents = make_team(orchestra_type, env_name, bindings, orchestra_options)
        env_cls = EnvRegistry.get(env_name)
        env = EnvFactory(env_cls, build_options(env_cls.config_class, env_params, "env.params"))
        return cls(orchestra, agents, env, bindings, settings, workers, reward_model)

    def first_prompt_lengths(self, agent_id: str, tasks: Sequence[Task]) -> list[int]:
        """Return for every task the tokens of an agent's first prompt: its templates with the task,
        without team context or memory.

        0 where they are not known: for an agent behind an API, and a team that is a program.
        """
        runtime = self.runtimes[agent_id]
        if not (self.orchestra.uses_prompts and isinstance(runtime.prompts, PromptBuilder)):
            return [0] * len(tasks)
        memory = self.orchestra.memory_class(self.settings.history_length)
        variables = [{"env_prompt": task.prompt, "messages": task.messages, "step": 1} for task in tasks]
        if not runtime.agent.stateful:
            return runtime.prompts.first_lengths(variables, memory)
        return [
            self._first_length(runtime, task, task_variables, memory)
            for task, task_variables in zip(tasks, variables, strict=True)
        ]

    def _first_length(
        self, runtime: AgentRuntime, task: Task, variables: Mapping[str, Any], memory: Memory
    ) -> int:
        """Return the tokens of the first prompt of an agent with state; 0 if its `start` fails,
        which will cost the task's episodes.

        Raises AgentSystemError when the state after `start` cannot be copied.
        """
        try:
            begun = runtime.begin(task, self.settings.history_length)
        except Exception as error:  # whatever a user's class raises
            logger.warning(
                "start() of %r failed for task %s: %r", runtime.agent.agent_id, task.task_id, error
            )
            return 0
        begun.agent.fork()
        assert isinstance(begun.prompts, PromptBuilder)
        return begun.prompts.first_lengths(
            [variables], memory if begun.agent.memory is None else begun.agent.memory
        )[0]

    async def collect(
        self,
        tasks: Sequence[Task],
        n: int,
        *,
        step: int,
        validate: bool = False,
        greedy: bool = False,
        attempt: int = 0,
    ) -> CollectResult:
        """Play `n` episodes of every task.

        The result depends on tasks, seeds and weights, never on which episode ends first. An
        episode whose environment worker died is played once more; if that worker dies as well, it
        has failed.

        Args:
            tasks: the step's tasks; a task that is listed twice makes two groups.
            n: episodes per task (the group).
            step: training step; part of group ids and seeds.
            validate: use `val_sampling`.
            greedy: decode greedily; group ids end in `GREEDY_SUFFIX`.
            attempt: number of this collection in the step, from 0; each has its own group ids and
                seeds.

        Raises:
            EngineGoneError: an engine's process died.
            TooManyFailuresError: the share of failed episodes, or of candidates left out of the
                trees of the other episodes, is above `max_failure_rate`; the message groups the
                causes.
            AgentSystemError: a local reward outside `reward.propagation.local_range`.
        """
        specs = _specs(tasks, n, step, validate, greedy, attempt)
        async with self.playing(len(specs)) as player:
            episodes = await player.play(specs)
        return await self._collected(episodes, player, validate)

    @asynccontextmanager
    async def groups(self, window: int) -> AsyncIterator[GroupPlayer]:
        """Yield a player of groups for a stream of training tasks.

        Args:
            window: number of the last episodes to which `max_failure_rate` applies.
        """
        async with self.playing(window) as player:
            yield GroupPlayer(self, player)

    @asynccontextmanager
    async def playing(self, window: int) -> AsyncIterator[EpisodePlayer]:
        """Yield a player of episodes. Connections to servers are closed when the last of several
        players ends.

        Args:
            window: number of episodes to which `max_failure_rate` applies.
        """
        settings = self.settings
        slots = asyncio.Semaphore(self.settings.max_concurrent_episodes)
        with DaemonExecutor(settings.env_threads) as threads:

            def start(spec: EpisodeSpec) -> Episode:
                # a validation compares weights, so each of its tasks has the same team in all
                group = spec.task.task_id if spec.validate else spec.env_uid
                orchestra = self.orchestra.of_group(stable_seed(settings.seed, "group", group))
                episode = Episode(spec, orchestra, self.runtimes, self._env(spec, threads), settings)
                episode.sampler = partial(sampled_call, episode)
                # a validation, and an episode that is a baseline, show what the team does without a
                # choice
                if settings.tree is not None and not (spec.validate or spec.greedy):
                    from agent_system.rollout.tree_call import TreeCalls  # of tree sampling alone

                    calls = TreeCalls(episode, settings.tree, self._models.get(spec.validate))
                    episode.sampler = calls.sample
                    episode.before_step = calls.end_turn
                return episode

            limits = settings.episode_timeout_s, settings.reward.timeout_s
            player = EpisodePlayer(start, self._score, slots, *limits, settings.max_failure_rate, window)
            self._players.add(player)
            try:
                yield player
            finally:
                self._players.remove(player)
                if not self._players:
                    await self._close()

    async def _close(self) -> None:
        await self.orchestra.release()
        if self._models:
            await self._models[False].close()
        for runtime in self.runtimes.values():
            if isinstance(runtime.binding, RemoteBinding):
                await runtime.binding.endpoint.close()

    async def _collected(
        self, episodes: Sequence[EpisodeRecord], player: EpisodePlayer, validate: bool = False
    ) -> CollectResult:
        """Return the result of played episodes."""
        if self._workers is not None:
            self._sandbox_failures = await self._workers.sandbox_failures()
        player.check_left_out(episodes)
        self._warn_of_shared_state()
        settings = self.settings.for_validation() if validate else self.settings
        # other episodes go on
        result = await asyncio.to_thread(self._result, episodes, settings)
        if self._models:
            result = replace(result, metrics=result.metrics | self._models[validate].take_counts())
        # otherwise agents learn from the rewards of `step`, and from ties
        if self.settings.tree is not None and not validate and self.settings.tree_returns == "step":
            self._tied_candidates.update(result.episodes)
        return result

    def set_theta(self, theta: float) -> None:
        """Set `reward.propagation.theta` for later collections."""
        propagation = replace(self.settings.reward.propagation, theta=theta)
        reward = replace(self.settings.reward, propagation=propagation)
        self.settings = replace(self.settings, reward=reward)

    def save_episodes(self, episodes: Sequence[EpisodeRecord], folder: Path) -> None:
        """Write episodes exactly, for a checkpoint."""
        # of asynchronous training alone
        from agent_system.rollout.episode_store import save_episodes

        save_episodes(episodes, folder)

    def load_episodes(self, folder: Path) -> list[EpisodeRecord]:
        """Return the episodes of `save_episodes`."""
        # of asynchronous training alone
        from agent_system.rollout.episode_store import load_episodes

        return load_episodes(folder)

    def join(self, results: Sequence[CollectResult], validate: bool = False) -> CollectResult:
        """Return several collections as one: rows and episodes in their order, rewards and metrics
        computed over all.

        Args:
            results: collections of training, or all of a validation.
            validate: they are parts of a validation.
        """
        # A mean that is taken again would weigh the first of equal replies twice.
        episodes = [e for r in results for e in (r.episodes if r.unshared is None else r.unshared)]
        joined = self._result(episodes, self.settings.for_validation() if validate else self.settings)
        counts = Counter[str]()
        for result in results:
            counts.update(
                {name: value for name, value in result.metrics.items() if name.startswith(MODEL_COUNTS)}
            )
        return replace(joined, metrics=joined.metrics | counts)

    def _result(self, episodes: Sequence[EpisodeRecord], settings: CollectorSettings) -> CollectResult:
        records, metrics = assign_rewards(
            episodes, settings.reward, settings.invalid_action_penalty, settings.tree_returns
        )
        unshared = None
        if settings.repeat_calls:
            from agent_system.reward.repeats import share_rewards  # of this key alone

            unshared = records
            records = share_rewards(records, settings.repeat_calls)
        prompts = None
        if settings.joint_prompt_length:
            # of critics of the whole team alone
            from agent_system.rollout.transcript import joint_prompts

            local = [
                runtime.binding
                for runtime in self.runtimes.values()
                if isinstance(runtime.binding, AgentBinding)
            ]
            tokenizers = {binding.wg_id: binding.tokenizer for binding in local}
            prompts = joint_prompts(records, tokenizers, settings.joint_prompt_length)
        metrics = (
            collect_metrics(records, list(self.runtimes), self._branching(), self._sandbox_failures) | metrics
        )
        batch = build_batch(
            records,
            prompts,
            greedy_baselines=bool(settings.greedy_baselines),
            token_rewards=settings.reward.granularity == "token",
            reward_terms=settings.reward_terms,
        )
        return CollectResult(batch, records, metrics, unshared)

    def _warn_of_shared_state(self) -> None:
        """Warn once of each agent that the first episodes have changed although all episodes share
        it.
        """
        for name, before in self._shared.items():
            after = own_data(self.runtimes[name].agent)
            if changed := sorted(key for key in before | after if before.get(key) != after.get(key)):
                logger.warning(
                    "agent %r changed its attribute %s during an episode, but all episodes share "
                    "one agent that does not override start(), those of a validation too; set the "
                    "attribute in start(self, task) to give every episode its own",
                    name, ", ".join(map(repr, changed)),
                )  # fmt: skip
        self._shared = {}

    def _branching(self) -> list[str]:
        """Return the agents whose calls have several candidates."""
        return [
            name
            for name, runtime in self.runtimes.items()
            if self.settings.candidates(name, runtime.binding.trained) > 1
        ]

    def _beginning(self, sample: Sample, count: int) -> str:
        """Return the text of the first `count` tokens of a reply."""
        return self.runtimes[sample.agent_id].binding.text_of(sample.generation.first(count))

    async def _score(self, record: EpisodeRecord, spec: EpisodeSpec, clock: EpisodeClock) -> EpisodeRecord:
        """Call the reward functions on the record of a finished episode."""
        model = self._models.get(spec.validate)
        record = await self._scorer.score(record, model and model.stopping(clock.stopped))
        if not (spec.validate or spec.greedy):
            self._check_terms(record)
        return record

    def _check_terms(self, record: EpisodeRecord) -> None:
        """Raise AgentSystemError for a trained call without a term from which its agent learns."""
        learning = [
            s
            for s in record.samples
            if s.agent_id in self.settings.reward_terms
            and s.identity.trained
            and (s.identity.committed or self.settings.tree_returns == "step")
        ]
        for sample in learning:
            for name in self.settings.reward_terms[sample.agent_id]:
                if record.term(sample, name) is None:
                    came = sorted({*sample.reward_terms, *record.reward_terms})
                    raise AgentSystemError(
                        f"algorithm.gdpo_reward_keys names {name!r}, which is no field of a "
                        f"sample, and no reward function gave {sample.agent_id} a term of that "
                        f"name in turn {sample.identity.turn}; terms that came: {', '.join(came) or 'none'}"
                    )

    def _env(self, spec: EpisodeSpec, threads: DaemonExecutor) -> EnvHandle:
        seed = stable_seed(self.settings.seed, spec.step, spec.validate, spec.env_uid)
        return EnvCaller(self.env.make(seed), threads) if self._workers is None else self._workers.env(seed)


def _check_team(
    orchestra: BaseOrchestra,
    agents: Mapping[str, BaseAgent],
    env: EnvFactory,
    bindings: Mapping[str, AgentBinding | RemoteBinding],
    settings: CollectorSettings,
) -> None:
    """Raise AgentSystemError for agents, an orchestra and an environment that do not fit each other."""
    if settings.tree is not None:
        from agent_system.rollout.tree_call import check_tree_env  # of tree sampling alone

        check_tree_env(env.cls, settings.reward)
    temperatures = {n: (b.sampling.temperature, b.val_sampling.temperature) for n, b in bindings.items()}
    check_members(orchestra, agents, env.make, temperatures, forks=settings.tree is not None)
    if settings.tool_sequences or any(agent.calls_tools for agent in agents.values()):
        from agent_system.rollout.tool_agents import check_tool_agents  # of agents with tools alone

        check_tool_agents(
            agents, bindings, branches=settings.tree is not None, sequences=settings.tool_sequences
        )


def _runtimes(
    agents: Mapping[str, BaseAgent], bindings: Mapping[str, AgentBinding | RemoteBinding]
) -> dict[str, AgentRuntime]:
    runtimes: dict[str, AgentRuntime] = {}
    encoders: dict[int, Encoder] = {}
    for name, agent in agents.items():
        binding = bindings[name]
        if isinstance(binding, RemoteBinding):
            runtimes[name] = AgentRuntime(agent, binding, MessageBuilder(agent))
            continue
        tokenizer = binding.tokenizer
        encoder = encoders.get(id(tokenizer)) or encoders.setdefault(id(tokenizer), Encoder(tokenizer))
        arguments = (
            tokenizer,
            binding.max_prompt_length,
            binding.template_kwargs,
            encoder,
            binding.prompt_length_key,
        )
        builder = (
            PromptBuilder(agent, *arguments) if not agent.calls_tools else _with_tools(agent, *arguments)
        )
        runtimes[name] = AgentRuntime(agent, binding, builder)
    return runtimes


def _with_tools(agent: BaseAgent, *arguments: Any) -> PromptBuilder:
    # the rounds of tool calls, which a team without tools does not have
    from agent_system.rollout.tool_loop import ToolPromptBuilder
    from agent_system.tools.agent import ToolAgent

    assert isinstance(agent, ToolAgent)
    return ToolPromptBuilder(agent, *arguments)


def _specs(
    tasks: Sequence[Task], n: int, step: int, validate: bool, greedy: bool, attempt: int
) -> list[EpisodeSpec]:
    if n < 1:
        raise AgentSystemError(f"the number of episodes per task must be at least 1, found {n}")
    task_counts: Counter[str] = Counter()
    prefix = _prefix(step, attempt, validate)
    specs = []
    for task in tasks:
        specs += _group(task, n, prefix, task_counts[task.task_id], step, validate, greedy)
        task_counts[task.task_id] += 1
    return specs


def _prefix(step: int, attempt: int, validate: bool = False) -> str:
    return f"{'val' if validate else 'step'}{step}{f'.{attempt}' if attempt else ''}"


def _uid(task: Task, prefix: str, number: int) -> str:
    return f"{prefix}/{task.task_id}/{number}"


def _group(
    task: Task, n: int, prefix: str, number: int, step: int, validate: bool, greedy: bool
) -> list[EpisodeSpec]:
    uid = _uid(task, prefix, number) + (GREEDY_SUFFIX if greedy else "")
    return [EpisodeSpec(task, uid, index, step, validate, greedy) for index in range(n)]
