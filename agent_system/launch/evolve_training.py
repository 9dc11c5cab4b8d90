"""Training between the generations of a search: an ordinary run that trains the best files together.

    python -m agent_system.launch.evolve_training CONFIG.yaml

runs the configuration in a process of its own, which the search starts and which ends with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.evolve.edits import Value, agents_of, normal, parts_agent, walk
from agent_system.launch.before_models import check_team
from agent_system.rollout.seeds import stable_seed
from agent_system.workflows.graph.team import Team
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.command_line import compose_config, load_config, save_config
from verl.trainer.plan.derived_values import resolve_defaults
from verl.utils.names import slug

POLICIES = "policies"
RUN_CONFIG = "run.yaml"
LOG = "train.log"
MOST_SEED = 2**31
MOST_QUOTED = 300
# Steps name agents under these keys.
AGENT_KEYS = ("call", "vote", "best", "agent")


@dataclass
class TrainedTeams:
    """Teams as one run trains them.

    Attributes:
        values: their files.
        roles: role of every agent of the run. Agents of one role share an adapter.
    """

    values: list[Value] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)


def teams_of_a_run(teams: Sequence[Team]) -> TrainedTeams:
    """Return teams as one run trains them. A run has one agent of a name, so an agent that a later
    file describes differently, with another prompt for example, gets a name of its own there; its
    role, which is what it was called before, stays.
    """
    run_teams = TrainedTeams()
    described: dict[str, str] = {}
    every_name = {name for team in teams for name in team.agents}
    for team in teams:
        value = normal(team.source.value)
        names: dict[str, str] = {}
        called_agents = [name for step in value["do"] for name in agents_of(step)]
        for role in dict.fromkeys(called_agents):
            description = json.dumps(_described(value["agents"], role), sort_keys=True)
            same = [n for n, text in described.items() if run_teams.roles[n] == role and text == description]
            name = same[0] if same else _free_name(role, {*run_teams.roles, *(every_name - {role})})
            described[name] = description
            run_teams.roles[name] = role
            names[role] = name
        run_teams.values.append(_renamed(value, names))
    return run_teams


def _described(agents: Mapping[str, Value], role: str) -> Value:
    """Return the fields of an agent with those that it has of others, and the name by which the
    environment knows it.
    """
    fields = {name: item for name, item in parts_agent(agents, role).items() if name != "like"}
    return {"as": role, **fields}


def _free_name(role: str, names: set[str]) -> str:
    """Return the role, or if it is the name of an agent, one that begins with the same words: replies
    are quoted by the first of them.
    """
    slugs = {slug(name) for name in names}
    texts = (role, *(f"{role} variant {number}" for number in range(2, len(names) + 3)))
    return next(text for text in texts if slug(text) not in slugs)


def _renamed(value: Value, names: Mapping[str, str]) -> Value:
    """Return a file whose agents have other names, each with all its fields."""
    agents = {names[role]: _described(value["agents"], role) for role in names}
    for _, step in walk(value["do"]):
        for key in AGENT_KEYS:
            if isinstance(step.get(key), str):
                step[key] = names[step[key]]
    return {**value, "agents": agents}


@dataclass
class GenerationTraining:
    """See `agent_system.evolve.search.RoleTrainer`.

    Attributes:
        arguments: keys of the run.
        steps: of a training.
        folder: of the search.
        graph: options of the orchestra beside its files.
        free: frees the engines, for the training.
        serve: called with the adapter of every role.
        adapters: folder of the adapter of every role that was trained.
    """

    arguments: Sequence[str]
    steps: int
    folder: Path
    graph: Mapping[str, Any]
    free: Callable[[], None] = lambda: None
    serve: Callable[[Mapping[str, Path]], None] = lambda adapters: None
    adapters: dict[str, Path] = field(default_factory=dict)

    def check_keys(self, teams: Sequence[Team]) -> None:
        """Raise ConfigError for keys of a run that a training of teams cannot have."""
        config = compose_config(self.arguments)
        specialization = config.agent.specialization
        setting = f"evolve.train_steps={self.steps}"
        if specialization != "lora":
            raise ConfigError(
                f"{setting} trains an adapter for every role: set agent.specialization=lora, found "
                f"{specialization}"
            )
        for name in ("model_ids", "adapter_ids", "agent_specific_parameters", "frozen"):
            if getattr(config.agent, name):
                raise ConfigError(
                    f"{setting}: the agents that are trained follow from the files, so agent.{name} cannot "
                    "name them; leave it out"
                )
        behind_api = {slug(name) for name in config.agent.api}
        remote = sorted({name for team in teams for name in team.agents if slug(name) in behind_api})
        if remote:
            raise ConfigError(
                f"{setting}: {', '.join(remote)} of the files is behind an API and has no weights; leave "
                "it out of agent.api, or evolve.train_steps"
            )

    def check(self, teams: Sequence[Team]) -> None:
        """Raise one of `USER_ERRORS` for a run that cannot train these teams."""
        with tempfile.TemporaryDirectory() as folder:
            config = self.config_of(teams, Path(folder), 0)
            resolve_defaults(config)
            check_team(config)
            resolve(config)

    def check_new(self) -> None:
        """Raise AgentSystemError for the folder of a search that begins, and has trainings of another
        one: they would be gone on with.
        """
        earlier = sorted(self.folder.glob("gen_*"))
        if earlier:
            raise AgentSystemError(
                f"{earlier[0]} is a training of another search, whose ledger is gone; remove the folder "
                f"{self.folder}, or set trainer.experiment_name to another one"
            )

    def config_of(self, teams: Sequence[Team], folder: Path, number: int) -> RunConfig:
        """Return the configuration of a run that trains teams, whose files are written into its
        folder.

        Args:
            teams: of at least one file.
            folder: of the run.
            number: of the training, for its seed.
        """
        config = compose_config(self.arguments)
        run_teams = teams_of_a_run(teams)
        files = []
        (folder / "teams").mkdir(parents=True, exist_ok=True)
        for place, value in enumerate(run_teams.values):
            files.append(str(folder / "teams" / f"{place}.json"))
            Path(files[-1]).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        agent = config.agent
        agent.agent_ids = list(run_teams.roles)
        agent.adapter_ids = [slug(role) for role in run_teams.roles.values()]
        agent.api = {}
        agent.orchestra_type = "graph"
        agent.orchestra = {"graph": {**self.graph, "files": files}}
        folders = [self.start_of(role, teams) for role in run_teams.roles.values()]
        if any(folders):
            agent.agent_specific_parameters = {"model": {"lora_adapter_path": folders}}
        config.data.seed = stable_seed(config.data.seed, "evolve/train", number) % MOST_SEED
        config.data.val_files = None
        trainer = config.trainer
        trainer.default_local_dir = str(folder)
        trainer.total_training_steps = self.steps
        trainer.val_before_train = False
        trainer.val_only = False  # a search does not read it
        trainer.test_freq = -1
        trainer.resume_mode = "auto"
        return config

    def start_of(self, role: str, teams: Sequence[Team]) -> str | None:
        """Return the folder of the adapter that a role starts from: its own, or that of the role that
        it was split from; None for a new one.
        """
        specs = {name: agent for team in teams for name, agent in team.spec.agents.items()}
        name: str | None = role
        while name is not None:
            if name in self.adapters:
                return str(self.adapters[name])
            name = specs[name].like if name in specs else None
        return None

    async def train(self, number: int, generation: int, teams: Sequence[Team]) -> dict[str, Any]:
        """See `RoleTrainer`. Raises AgentSystemError if the run fails."""
        from verl.trainer.checkpoint.export import export
        from verl.trainer.checkpoint.saved_run import SavedRun

        folder = self.folder / f"gen_{generation}"
        config = self.config_of(teams, folder, number)
        roles = dict.fromkeys(teams_of_a_run(teams).roles.values())
        policies = folder / POLICIES
        if not policies.is_dir():
            save_config(config, folder / RUN_CONFIG)
            self.free()
            await _run(folder)
            export(folder, policies)
        tokens = SavedRun.open(folder).metrics().get("training/generated_tokens", 0)
        folders = {role: str((policies / slug(role)).relative_to(self.folder)) for role in roles}
        before = {role: str(path.relative_to(self.folder)) for role, path in self.adapters.items()}
        every_folder = before | folders
        return {
            "tokens": int(tokens),
            "roles": every_folder,
            "weights": {role: adapter_hash(self.folder / path) for role, path in every_folder.items()},
        }

    def use(self, result: Mapping[str, Any]) -> None:
        """See `RoleTrainer`."""
        self.adapters = {role: self.folder / path for role, path in result["roles"].items()}
        for role, path in self.adapters.items():
            if adapter_hash(path) != result["weights"][role]:
                raise AgentSystemError(
                    f"{path}: the adapter of {role!r} is not the one with which the search went on; restore "
                    "the folder, or set trainer.experiment_name to another one"
                )
        self.serve(self.adapters)


def adapter_hash(folder: Path) -> str:
    """Return a hash of an adapter's weights; empty for a folder that has none."""
    path = folder / "adapter_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


async def _run(folder: Path) -> None:
    """Train in a process of its own. Raise AgentSystemError if it fails."""
    from verl.workers.rollout.vllm.process import PARENT  # how a process ends with its parent

    log = folder / LOG
    with open(log, "ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agent_system.launch.evolve_training", str(folder / RUN_CONFIG),
            stdout=output, stderr=output, env=os.environ | {PARENT: str(os.getpid())},
        )  # fmt: skip
        status = await process.wait()
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        raise AgentSystemError(
            f"the training in {folder} ended with status {status}: {lines[-1][:MOST_QUOTED]} (all of its "
            f"output is in {log}); the same command goes on after its last checkpoint"
        )


def main() -> None:
    """Train with the configuration of a file; errors as those of `verl-mas train`."""
    from omegaconf import OmegaConf

    from agent_system.launch.train import entry, run
    from agent_system.registry import load_plugins
    from verl.trainer.config.command import log_to_terminal
    from verl.workers.rollout.vllm.process import PARENT, end_with

    if PARENT in os.environ:
        end_with(int(os.environ[PARENT]))
    log_to_terminal()
    config = load_config(Path(sys.argv[1]))
    load_plugins(config.agent.plugins)
    entry(run)(OmegaConf.structured(config))


if __name__ == "__main__":
    main()
