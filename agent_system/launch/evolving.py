"""A search for a team with the engines of a run: no trainers, every file played as in validation."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent_system.agent import BaseAgent
from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.evolve.edits import Parts
from agent_system.evolve.evaluate import TeamPlayer
from agent_system.evolve.inputs import named_files
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.propose import TaskTexts, structure
from agent_system.evolve.replay import ReplayClient, ReplayMemory
from agent_system.evolve.report import write_report
from agent_system.evolve.search import AskModel, SearchInputs, TeamSearch
from agent_system.evolve.settings import EvolveConfig, EvolveSettings
from agent_system.launch.before_models import check_team
from agent_system.launch.checks import USER_ERRORS, build_datasets, prompt_measures, start_sandbox
from agent_system.launch.collector import (
    agent_bindings,
    build_reward_model,
    check_endpoints,
    collector_settings,
)
from agent_system.launch.env_workers import env_workers
from agent_system.launch.evolve_training import GenerationTraining, adapter_hash
from agent_system.memory import SimpleMemory
from agent_system.options import build_options
from agent_system.registry import EnvRegistry
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, EnvFactory
from agent_system.rollout.prompt import PromptBuilder, PromptTooLongError
from agent_system.rollout.remote import MessageBuilder, RemoteBinding
from agent_system.sandbox import close_shared
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from verl.models.fingerprint import model_fingerprint
from verl.protocol.generate import RolloutError
from verl.trainer.config import RunConfig
from verl.trainer.config.command import fail, key_of, log_to_terminal
from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.model_checks import check_vllm
from verl.trainer.plan.checks import check_untrained
from verl.trainer.plan.command_line import check_override, compose_config, report_config_errors
from verl.trainer.plan.derived_values import load_group_tokenizer, resolve_defaults, run_dir_of
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.reward_model import with_reward_model
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import resolve_device
from verl.trainer.serving import Engines, for_serving, running_engines, serve_adapters, serving_plan
from verl.utils.accuracy import wilson_interval
from verl.utils.disk import writing
from verl.utils.names import slug, value_at

logger = logging.getLogger(__name__)
PREFIX = "evolve."
# Keys under `evolve` that end a search.
LIMITS = ("budget_tokens", "generations")
# Sections whose keys change what a search finds.
INPUTS = ("data.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout.", "agent.", "env.", "reward.",
          "rollout.", "sandbox.")  # fmt: skip
# Those that change what a training between generations learns.
TRAINED_INPUTS = ("actor_rollout_ref.", "algorithm.", "critic.")


def load_settings(arguments: Sequence[str]) -> EvolveSettings:
    """Return the keys under `evolve` of a command line. Raises ConfigError, or an error of Hydra."""
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name="evolve_keys", node=EvolveConfig)
    for argument in arguments:
        check_override(argument, keys(EvolveConfig))
    with initialize(version_base=None, config_path=None):
        config = OmegaConf.to_object(compose(config_name="evolve_keys", overrides=list(arguments)))
    assert isinstance(config, EvolveConfig)
    if not config.evolve.start:
        raise ConfigError("evolve.start is empty; name the file of a team: evolve.start=[team.yaml]")
    return config.evolve


def run_config(arguments: Sequence[str]) -> RunConfig:
    """Return the configuration of the other keys, for engines in this process."""
    trained = compose_config(arguments)
    config = for_serving(trained, trained.trainer.device)
    config.reward = trained.reward
    return config


def tasks_hash(tasks: Sequence[Task]) -> str:
    """Return a hash of tasks."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(asdict(task), sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


@dataclass
class EngineTeams:
    """Makes collectors of teams that share engines.

    Attributes:
        config, plan: of the run.
        tokenizers: by worker group.
        clients: by worker group.
        memory: kept replies.
        folder: has the files of the teams that were played.
        file_agents: agents of the files that the user names; others are those of edits.
        workers: of `env.workers`.
        engines: has the clients, if `clients` are of no engines.
    """

    config: RunConfig
    plan: RunPlan
    tokenizers: Mapping[str, Any]
    clients: Mapping[str, Any]
    memory: ReplayMemory
    folder: Path
    file_agents: Collection[str]
    workers: Any = None
    engines: SearchEngines | None = None

    def bindings(self) -> dict[str, AgentBinding | RemoteBinding]:
        """Return the agents of the run. A server's connection is that of one collector."""
        config = self.config if self.engines is None else self.engines.config
        plan = self.plan if self.engines is None else self.engines.plan
        bindings = agent_bindings(config, plan, self.tokenizers, self._clients())
        return {name: self._with_kept_replies(binding) for name, binding in bindings.items()}

    def _clients(self) -> Mapping[str, Any]:
        return self.clients if self.engines is None else self.engines.clients()

    def _with_kept_replies(self, binding: AgentBinding | RemoteBinding) -> AgentBinding | RemoteBinding:
        """Return a binding whose replies are kept."""
        if isinstance(binding, RemoteBinding):
            # servers, which most runs do not have
            from agent_system.evolve.replay_api import ReplayEndpoint

            return replace(binding, endpoint=ReplayEndpoint(binding.endpoint, self.memory))
        weights = self.engines.weights_of(binding.policy_id) if self.engines is not None else ""
        name = f"{binding.wg_id}@{weights}" if weights else binding.wg_id
        return replace(
            binding,
            client=ReplayClient(binding.client, name, self.memory),
            # without training the adapter is its base
            adapter=binding.adapter if weights else None,
        )

    @property
    def served_agents(self) -> Collection[str]:
        """Agents that are served as themselves: those of the user's files, and roles that were trained."""
        return {*self.file_agents, *(self.engines.adapters if self.engines is not None else ())}

    def collector(self, team: Team) -> Collector:
        """Return the collector of a team. An agent that no file has is served as the one that it is
        like. Raises AgentSystemError.
        """
        path = self.folder / f"{team.key()}.yaml"
        team.save(path)
        tools = dict((self.config.agent.orchestra.get("graph") or {}).get("tools") or {})
        calls = max(team.calls, 1)
        orchestra = GraphOrchestra(GraphOptions(str(path), max_calls=calls, tools=tools))
        run_bindings = self.bindings()
        bindings = {
            name: replace(run_bindings[_base(team, name, self.served_agents)], agent_id=name)
            for name in team.agents
        }
        env_name = self.config.env.env_name
        agents: dict[str, BaseAgent] = {}
        for name in team.agents:
            agent = orchestra.make_agent(name, env_name)
            assert agent is not None, "the file has it"
            agents[name] = agent
        env_cls = EnvRegistry.get(env_name)
        env = EnvFactory(env_cls, build_options(env_cls.config_class, self.config.env.params, "env.params"))
        settings = replace(
            collector_settings(self.config, self.plan), max_failure_rate=1.0, tree=None, tool_sequences=()
        )
        data, reward = self.config.data, self.config.reward
        model = build_reward_model(data, reward, self.plan, self.tokenizers, self._clients())
        return Collector(orchestra, agents, env, bindings, settings, self.workers, model)

    def proposer(self, name: str) -> AskModel:
        """Return the function that asks an agent of the run for edits."""

        async def ask(text: str, seed: int) -> tuple[str, int]:
            binding = self.bindings()[name]
            agent = _Proposer(name)
            variables = {"env_prompt": text, "messages": (), "step": 1}
            builder: PromptBuilder | MessageBuilder
            if isinstance(binding, RemoteBinding):
                builder = MessageBuilder(agent)
            else:
                builder = PromptBuilder(
                    agent, binding.tokenizer, binding.max_prompt_length, binding.template_kwargs,
                    length_key=binding.prompt_length_key,
                )  # fmt: skip
            form = structure() if binding.structured else ""
            sampling = replace(binding.val_sampling, structure=form)
            try:
                prompt = builder.build(variables, [], SimpleMemory(1))
                (reply,) = await binding.replies(prompt, sampling, 1, seed, f"evolve/{seed}")
            except (PromptTooLongError, RolloutError) as error:
                raise AgentSystemError(f"evolve.proposer={name}: {error}") from error
            finally:
                if isinstance(binding, RemoteBinding):
                    await binding.endpoint.close()
            tokens = len(reply.token_ids) or int(getattr(reply, "reply_tokens", 0))
            return binding.text_of(reply, prompt.text), tokens

        return ask


@dataclass(eq=False)
class SearchEngines:
    """The engines of a search, started when a team first plays, and anew for other weights.

    Attributes:
        config, plan: of the agents that are served, with the roles that were trained.
        adapters: folder of the adapter of every role that was trained.
    """

    config: RunConfig
    plan: RunPlan
    adapters: Mapping[str, Path] = field(default_factory=dict, init=False)
    _hashes: dict[str, str] = field(default_factory=dict, init=False)
    _started: ExitStack = field(default_factory=ExitStack, init=False)
    _clients: Mapping[str, Any] | None = field(default=None, init=False)

    def weights_of(self, policy: str) -> str:
        """Return what tells the adapter of a policy from others; empty for one that was not trained."""
        return self._hashes.get(policy, "")

    def clients(self) -> Mapping[str, Any]:
        """Return the clients of the engines, which are started if they are not."""
        if self._clients is not None:
            return self._clients
        with ExitStack() as started:
            engines = Engines(name="", slots=None)
            team = started.enter_context(running_engines(self.config, self.plan, engines))
            self._clients = team.engines.clients
            if self.adapters:
                serve_adapters({slug(role): path for role, path in self.adapters.items()}, self.plan, team)
                self._clients = team.engines.serving_clients()
            self._started = started.pop_all()
        return self._clients

    def serve(self, adapters: Mapping[str, Path]) -> None:
        """Serve these adapters from now on, by role."""
        self.free()
        self.adapters = dict(adapters)
        self._hashes = {slug(role): adapter_hash(path) for role, path in adapters.items()}
        self.config = copy.deepcopy(self.config)
        self.config.agent.agent_ids = list(dict.fromkeys([*self.config.agent.agent_ids, *adapters]))
        self.plan = _plan_of(self.config)

    def free(self) -> None:
        """End the engines."""
        self._clients = None
        self._started.close()


class _Proposer(BaseAgent):
    """Asks for edits."""

    prompt = "{env_prompt}"


def _base(team: Team, name: str, file_agents: Collection[str]) -> str:
    """Return the agent of the run that serves an agent of a team.

    An edit may name a new agent as one of the run that no file has, such as the proposer: it is not
    served as that one.
    """
    while name not in file_agents:
        like = team.spec.agents[name].like
        assert like is not None, "edits add agents that are like others"
        name = like
    return name


def _plan_of(config: RunConfig) -> RunPlan:
    """Return the plan of a search, all of whose agents are served. Raise ConfigError."""
    placement = with_reward_model(
        build_placement(config.agent, config.actor_rollout_ref),
        config.reward,
        config.agent,
        config.actor_rollout_ref,
    )
    adapted = [row.agent_id for row in placement.agents if row.config.model.lora_adapter_path is not None]
    if adapted:
        raise ConfigError(
            f"model.lora_adapter_path of {', '.join(adapted)}: verl-mas evolve serves whole models; "
            "merge the adapter into the model (verl-mas export)"
        )
    return serving_plan(RunPlan.of(config, placement), Engines(name="", slots=None))


class SearchDisplay:
    """Shows a search: lines, and on a terminal a bar with the budget that is left."""

    def __init__(self, settings: EvolveSettings, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("evolving"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("evolving", total=settings.generations, left="")

    def __enter__(self) -> SearchDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def on_batch(self, search: TeamSearch) -> None:
        """Show what a search has done so far."""
        budget = search.settings.budget_tokens
        text = f"{search.counts.spent:,} tokens spent"
        left = text if budget is None else f"{max(search.left(), 0):,.0f} of {budget:,} tokens left"
        self._progress.update(self._task, completed=search.generation, left=left)


def evolve(settings: EvolveSettings, arguments: Sequence[str]) -> Path:
    """Search with the keys of a command line, and return the path of the report.

    Raises one of `USER_ERRORS`.
    """
    search = open_search(settings, arguments)
    with writing(search.folder):
        (search.folder / "teams").mkdir(parents=True, exist_ok=True)
        return search.run()


def open_search(settings: EvolveSettings, arguments: Sequence[str]) -> EngineSearch:
    """Return the search of a command line, before anything is loaded or written.

    Raises one of `USER_ERRORS`.
    """
    config = run_config(arguments)
    graph = dict(config.agent.orchestra.get("graph") or {})
    tools = list(graph.get("tools") or {})
    start = [Team.load(path, tools=tools) for path in settings.start]
    parts = [Team.load(path, tools=tools) for path in settings.parts]
    training = None
    if settings.train_steps:
        options = {name: value for name, value in graph.items() if name not in ("file", "files")}
        training = GenerationTraining(arguments, settings.train_steps, Path(), options)
        training.check_keys([*start, *parts])
    # the agents of the files, behind those that the command line names
    named_agents = config.agent.agent_ids if any(key_of(a) == "agent.agent_ids" for a in arguments) else []
    of_files = [name for team in (*start, *parts) for name in team.agents]
    config.agent.agent_ids = list(dict.fromkeys([*named_agents, *of_files]))
    config.agent.orchestra_type = "graph"
    config.agent.orchestra = {"graph": {**graph, "file": settings.start[0]}}
    if settings.proposer is not None and settings.proposer not in config.agent.agent_ids:
        raise ConfigError(
            f"evolve.proposer={settings.proposer}: no agent of the run; agents: "
            f"{', '.join(config.agent.agent_ids)}; add it to agent.agent_ids"
        )
    resolve_defaults(config)
    check_team(config)
    plan = _plan_of(config)
    check_untrained(config.agent, config.trainer, config.actor_rollout_ref, plan)
    device = resolve_device(config.trainer.device)
    check_vllm(plan, device)
    folder = run_dir_of(config.trainer) / "evolve"
    if training is not None:
        training.folder = folder
        training.check(start)
    return EngineSearch(settings, config, plan, start, parts, folder, training)


@dataclass(frozen=True)
class EngineSearch:
    """A search with the engines and the environment of a run.

    Attributes:
        settings: keys under `evolve`.
        config, plan: of the run.
        start, parts: files that are played at first, and those that edits take parts from.
        folder: has all files of the search.
        training: between generations; None: no weights change.
    """

    settings: EvolveSettings
    config: RunConfig
    plan: RunPlan
    start: Sequence[Team]
    parts: Sequence[Team]
    folder: Path
    training: GenerationTraining | None = None

    def run(self) -> Path:
        """Search, and return the path of the report. Raises one of `USER_ERRORS`."""
        settings, folder = self.settings, self.folder
        memory = ReplayMemory(folder / "replies.jsonl")
        unserved = self.unserved(memory)
        train, val = self.tasks(unserved)
        ledger = SearchLedger(folder, self._header(train, val), memory)
        try:
            if self.training is not None and not ledger.resumed:
                self.training.check_new()
            with ExitStack() as started:
                teams = started.enter_context(self.serving(unserved))
                display = started.enter_context(SearchDisplay(settings, Console()))
                if ledger.resumed:
                    display.say(f"going on after {ledger.resumed} events of {folder / 'ledger.jsonl'}")
                if len(train) < settings.tasks + settings.confirm:
                    display.say(
                        f"{len(train)} training tasks for {settings.tasks} + {settings.confirm} places: "
                        "the finalists play some of them a second time, with other seeds"
                    )
                player = TeamPlayer(
                    teams.collector, train, val, memory, settings.score, self.config.data.seed
                )
                if self.training is not None:
                    assert teams.engines is not None, "they are served"
                    self.training.free = teams.engines.free
                    self.training.serve = partial(_serve, teams.engines, player)
                inputs = self._inputs(teams, player, train, val, display)
                votes = any(b.val_sampling.temperature > 0 for b in unserved.bindings().values())
                search = TeamSearch(replace(inputs, votes=votes), ledger)
                asyncio.run(search.run())
                path = write_report(search, folder, wilson_interval)
                _say_result(search, display, path)
                return path
        finally:
            ledger.close()

    def unserved(self, memory: ReplayMemory) -> EngineTeams:
        """Return teams without engines, for what needs none."""
        tokenizers = {group.wg_id: load_group_tokenizer(group) for group in self.plan.groups}
        file_agents = {name for team in (*self.start, *self.parts) for name in team.agents}
        clients: Mapping[str, Any] = dict.fromkeys(tokenizers)
        folder = self.folder / "teams"
        return EngineTeams(self.config, self.plan, tokenizers, clients, memory, folder, file_agents)

    @contextmanager
    def serving(self, unserved: EngineTeams) -> Iterator[EngineTeams]:
        """Return teams with engines, which start when the first one plays and end at exit."""
        with ExitStack() as started:
            start_sandbox(self.config)
            started.callback(close_shared)
            check_endpoints(self.config.reward, self.plan)
            engines = SearchEngines(self.config, self.plan)
            started.callback(engines.free)
            workers = started.enter_context(env_workers(self.config))
            yield replace(unserved, engines=engines, workers=workers)

    def _inputs(
        self,
        teams: EngineTeams,
        player: TeamPlayer,
        train: Sequence[Task],
        val: Sequence[Task],
        display: SearchDisplay,
    ) -> SearchInputs:
        settings = self.settings
        tools = list(self.config.agent.orchestra["graph"].get("tools") or {})
        files = [*self.start, *self.parts]
        return SearchInputs(
            settings,
            self.config.data.seed,
            self.start,
            Parts.of(files, settings.max_calls, tools, self.config.agent.agent_ids),
            player,
            num_val=len(val),
            ask=None if settings.proposer is None else teams.proposer(settings.proposer),
            tasks=TaskTexts.of([task.prompt for task in (*train, *val)], files),
            say=display.say,
            on_batch=display.on_batch,
            trainer=self.training,
        )

    def tasks(self, teams: EngineTeams) -> tuple[list[Task], list[Task]]:
        """Return the tasks of the search, and those that are held out. Raise DatasetError."""
        config = self.config
        measures = [m for team in self.start for m in prompt_measures(teams.collector(team))]
        tokenizer = next(iter(teams.tokenizers.values()), None)
        config.trainer.val_only = False
        train, val = build_datasets(config.data, config.env, config.trainer, tokenizer, measures)
        if train is None or not len(train):
            raise ConfigError("data.train_files has no tasks for the search")
        read = [[dataset[i] for i in range(len(dataset))] for dataset in (train, val) if dataset is not None]
        return read[0], read[1] if val is not None else []

    def _header(self, train: Sequence[Task], val: Sequence[Task]) -> dict[str, Any]:
        """Return what the search depends on: keys that are not at their default, the device, and
        hashes of models, tasks, teams and other files that keys name. It has no `LIMITS`, which
        end a search and may be raised later.
        """
        config = self.config
        inputs = INPUTS if self.training is None else (*INPUTS, *TRAINED_INPUTS)
        changed = {
            name: value_at(config, name)
            for name, key in keys(RunConfig).items()
            if name.startswith(inputs) and not key.secret and value_at(config, name) != key.default
        }
        left_out = ("start", "parts", *LIMITS)
        graph = config.agent.orchestra["graph"]
        # the start file counts by its key
        options = {name: value for name, value in graph.items() if name != "file"}
        return {
            "evolve": {name: value for name, value in asdict(self.settings).items() if name not in left_out},
            "keys": changed,
            "device": resolve_device(config.trainer.device),
            "files": named_files(changed | {"agent.orchestra": options}),
            "weights": {group.wg_id: model_fingerprint(group.model_path) for group in self.plan.groups},
            "start": [team.key() for team in self.start],
            "parts": [team.key() for team in self.parts],
            "tasks": tasks_hash(train),
            "held_out": tasks_hash(val),
            "seed": config.data.seed,
        }


def _serve(engines: SearchEngines, player: TeamPlayer, adapters: Mapping[str, Path]) -> None:
    """Play with the adapters of roles from now on."""
    engines.serve(adapters)
    player.forget_teams()


def _say_result(search: TeamSearch, display: SearchDisplay, path: Path) -> None:
    choice = search.chosen
    assert choice is not None, "the search has ended"
    if choice.held_out:
        mean = sum(e.score for e in choice.held_out) / len(choice.held_out)
        display.say(f"the chosen team scores {mean:.1%} on {len(choice.held_out)} held-out tasks")
    display.say(f"{path.parent / 'best.yaml'}\n{path}")


def main() -> None:
    """Run the command line; an error of the user is one line on stderr and exit status 1."""
    log_to_terminal()
    arguments = sys.argv[1:]
    ours = [argument for argument in arguments if argument.lstrip("+~").startswith(PREFIX)]
    with report_config_errors(arguments):
        try:
            evolve(load_settings(ours), [argument for argument in arguments if argument not in ours])
        except USER_ERRORS as error:
            if isinstance(error, ConfigError):
                raise
            fail(str(error), 1)
        except KeyboardInterrupt:
            fail("stopped; the same command goes on after the last batch", 130)
