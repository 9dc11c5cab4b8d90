"""An audit of a run: the engines of a checkpoint play its next step, and decisions of these
episodes again with other replies.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from agent_system.errors import AgentSystemError
from agent_system.launch.before_models import check_team
from agent_system.launch.checks import build_datasets, prompt_measures, start_sandbox
from agent_system.launch.collector import build_collector, build_reward_model, check_endpoints
from agent_system.launch.env_workers import env_workers
from agent_system.record import EpisodeRecord
from agent_system.replay.arms import (
    ArmPlayer,
    AuditSize,
    Decision,
    DecisionOutcome,
    Key,
    decisions_of,
    expected_replies,
    spread,
)
from agent_system.replay.client import Replays, replayer
from agent_system.replay.effects import Measured, effects_table, estimator_rows
from agent_system.rollout.collector import Collector
from agent_system.sandbox import close_shared
from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX
from verl.protocol.template_time import TEMPLATE_TIME
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.checkpoint.store import STATE_FILE
from verl.trainer.config import AlgorithmConfig, DataConfig, RunConfig
from verl.trainer.model_checks import check_vllm
from verl.trainer.plan.checks import check_untrained
from verl.trainer.plan.derived_values import load_group_tokenizer, resolve_defaults
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.plan.reward_model import with_reward_model
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.checkpointer import LOADER_FILE
from verl.trainer.ppo.collect.source import collect_step
from verl.trainer.ppo.collect.step_samples import NoSamplesError, StepSamples
from verl.trainer.ppo.controller import resolve_device
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.team import TeamWorkers
from verl.trainer.serving import Engines, for_serving, running_engines, serve_weights, serving_plan
from verl.utils.checkpoint import CheckpointError
from verl.utils.console import print_table
from verl.utils.dataset import RLHFDataset, TaskLoader, build_loader
from verl.utils.disk import write_whole, writing
from verl.utils.names import error_line

logger = logging.getLogger(__name__)
FOLDER = "audit"
REMAX = "remax"  # plays a greedy episode of each task as its baseline


@dataclass(frozen=True)
class AuditedTeam:
    """The engines of a checkpoint, with what a step of its run needs.

    Attributes:
        config, plan: of the run, for engines in this process.
        state: that of the trainer.
        collector: plays the episodes of a step.
        replayer: plays episodes again.
        replays: those of `replayer`.
        loader: of the training tasks, at its place after the checkpoint.
        workers: worker groups without trainers.
    """

    config: RunConfig
    plan: RunPlan
    state: Mapping[str, Any]
    collector: Collector
    replayer: Collector
    replays: Replays
    loader: TaskLoader
    workers: TeamWorkers


def open_run(run: str, step: int | None) -> SavedRun:
    """Read a checkpoint of a run, `step` or the newest. Raise as `SavedRun.open` does."""
    if step is None:
        return SavedRun.open(run)
    folder = Path(run).expanduser().absolute()
    if folder.name == f"global_step_{step}":
        return SavedRun.open(folder)
    checkpoints = folder / "checkpoints"
    if not (checkpoints / f"global_step_{step}" / STATE_FILE).is_file():
        steps = sorted(
            int(number)
            for path in checkpoints.glob(f"global_step_*/{STATE_FILE}")
            if (number := path.parent.name.rpartition("_")[2]).isdigit()
        )
        raise CheckpointError(
            f"no checkpoint of step {step} in {checkpoints}; there are those of: "
            f"{', '.join(map(str, steps)) or 'no step'} (trainer.save_freq sets which are written)"
        )
    return SavedRun.open(checkpoints / f"global_step_{step}")


def run_config(saved: SavedRun, device: str) -> RunConfig:
    """Return the configuration of a run for engines in this process; episodes are rewarded and
    advantages computed as in training, without the KL in the reward, for which no model is loaded.
    """
    config = for_serving(saved.config, device)
    config.reward = copy.deepcopy(saved.config.reward)
    config.gateway.program_error = saved.config.gateway.program_error
    config.trainer.val_only = False
    config.data.val_files = []
    config.algorithm.kl_ctrl.kl_coef = 0.0
    return config


@contextmanager
def audited_team(saved: SavedRun, device: str) -> Iterator[AuditedTeam]:
    """Start the engines of a checkpoint; shut them down at exit.

    Raises one of `USER_ERRORS`, those of the configuration before a model loads.
    """
    config = run_config(saved, device)
    placement = with_reward_model(saved.placement, config.reward, config.agent, config.actor_rollout_ref)
    plan = RunPlan.of(config, placement)
    engines = Engines(name="", slots=None)
    served_plan = serving_plan(plan, engines)
    state = json.loads((saved.folder / STATE_FILE).read_text(encoding="utf-8"))
    if "template_time" in state:  # before the first prompt is rendered
        TEMPLATE_TIME.restore(str(state["template_time"]))
    resolve_defaults(config)
    check_team(config)
    check_untrained(config.agent, config.trainer, config.actor_rollout_ref, plan)
    check_vllm(served_plan, resolve_device(device))
    tokenizers = {group.wg_id: load_group_tokenizer(group) for group in plan.groups}
    unserved = build_collector(config, plan, tokenizers, dict.fromkeys(tokenizers))
    if not (saved.folder / LOADER_FILE).is_file():
        raise CheckpointError(
            f"{saved.folder} has no {LOADER_FILE}, so its next tasks are unknown; restore it"
        )
    measures = prompt_measures(unserved)
    tokenizer = next(iter(tokenizers.values()), None)
    train, _ = build_datasets(config.data, config.env, config.trainer, tokenizer, measures)
    assert train is not None, "a run that writes checkpoints has training tasks"
    loader = _loader(saved, config.data, train)
    check_endpoints(config.reward, plan)
    with ExitStack() as started:
        start_sandbox(config)
        started.callback(close_shared)
        team = started.enter_context(running_engines(config, plan, engines))
        serve_weights(saved, team)
        clients = team.engines.serving_clients()
        workers = started.enter_context(env_workers(config))
        replays = Replays()
        collector = build_collector(config, plan, tokenizers, clients, workers)
        model = build_reward_model(config.data, config.reward, plan, tokenizers, clients)
        again = replayer(collector, replays, workers, model)
        yield AuditedTeam(config, plan, state, collector, again, replays, loader, team)


def _loader(saved: SavedRun, data: DataConfig, train: RLHFDataset) -> TaskLoader:
    """Return the loader of the training tasks, at its place after the checkpoint."""
    loader = build_loader(train, data)
    loader.load_state_dict(torch.load(saved.folder / LOADER_FILE, weights_only=True))
    return loader


@dataclass(frozen=True)
class PlayedStep:
    """The step after a checkpoint.

    Attributes:
        number: of the step.
        samples: its rows and episodes.
        rows: keys of the rows.
        used: the estimator of the run.
        advantages: mean advantage of a row over its tokens by its key, by estimator.
        left_out: why others have none.
        tokens: that each estimator needs.
    """

    number: int
    samples: StepSamples
    rows: set[Key]
    used: str
    advantages: Mapping[str, Mapping[Key, float]]
    left_out: Mapping[str, str]
    tokens: Mapping[str, int]

    @property
    def episodes(self) -> list[EpisodeRecord]:
        """Its sampled episodes that did not fail."""
        return [e for e in _sampled(self.samples.episodes) if not e.failed]


async def play_step(team: AuditedTeam) -> PlayedStep:
    """Play the step after the checkpoint, and compute its advantages with every estimator that can
    use its rows.

    Raises the errors of the collector, and NoSamplesError.
    """
    config = team.config
    last = int(team.state["global_step"])
    credit = CreditAssigner(config, team.plan, team.workers)
    credit.load_state_dict(team.state["credit"])
    if credit.theta.adapts:
        team.collector.set_theta(credit.theta.value)
    samples = await collect_step(config, team.plan, team.collector, team.loader, last + 1)
    batch = samples.batch
    if batch is None:
        raise NoSamplesError(last + 1, samples.no_batch_reason)
    used = config.algorithm.adv_estimator
    with_baselines, greedy_tokens = await _greedy_baselines(team, samples, last + 1)
    advantages: dict[str, Mapping[Key, float]] = {}
    left_out = {}
    functions = set()
    for name in dict.fromkeys((used, *ESTIMATORS.names())):
        if (function := ESTIMATORS.function(name)) in functions:
            continue  # another name of one before
        functions.add(function)
        if name != used:
            credit = CreditAssigner(
                replace(config, algorithm=_with_estimator(config.algorithm, name)), team.plan, team.workers
            )
        rows = copy.deepcopy(batch if name == used else with_baselines)
        try:
            advantages[name] = _means(credit.estimate(rows, last))
        except ValueError as error:
            left_out[name] = error_line(error)
    episode_tokens = _tokens(_sampled(samples.episodes))
    tokens = {name: episode_tokens + (greedy_tokens if name == REMAX else 0) for name in advantages}
    return PlayedStep(last + 1, samples, set(_keys(batch)), used, advantages, left_out, tokens)


async def _greedy_baselines(team: AuditedTeam, samples: StepSamples, step: int) -> tuple[DataProto, int]:
    """Return the rows of a step with the baselines of greedy episodes, where each task can have one
    beside its own, and the tokens of these.
    """
    batch = samples.batch
    assert batch is not None, "the step has rows"
    config = team.config
    sampled = _sampled(samples.episodes)
    no_episodes = config.algorithm.filter_groups.enable or (team.plan.tree and not team.plan.committed)
    if "reward_baselines" in batch.non_tensor_batch or no_episodes:
        return batch, _tokens(samples.episodes) - _tokens(sampled)
    from verl.trainer.ppo.collect.greedy_baseline import reward_baselines  # of ReMax alone

    tasks = list({e.uid: e.task for e in sampled}.values())
    greedy = await team.collector.collect(tasks, 1, step=step, greedy=True)
    baselines, _ = reward_baselines(batch, greedy, config.reward.alpha)
    batch = copy.deepcopy(batch)
    batch.non_tensor_batch["reward_baselines"] = baselines
    return batch, _tokens(greedy.episodes)


def _with_estimator(algorithm: AlgorithmConfig, name: str) -> AlgorithmConfig:
    """Return the keys under `algorithm` with one estimator for all agents."""
    algorithm = copy.deepcopy(algorithm)
    algorithm.adv_estimator = name
    algorithm.per_agent = {}
    return algorithm


def _sampled(episodes: Any) -> list[Any]:
    return [e for e in episodes if not e.uid.endswith(GREEDY_SUFFIX)]


def _tokens(episodes: Any) -> int:
    return sum(e.reply_tokens for e in episodes if not e.failed)


def _means(batch: DataProto) -> dict[Key, float]:
    """Return the mean advantage of every row over its tokens, by its key."""
    mask = batch.batch["response_mask"].double()
    advantages = batch.batch["advantages"].double()
    values = ((advantages * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).tolist()
    return dict(zip(_keys(batch), values, strict=True))


def _keys(batch: DataProto) -> list[Key]:
    columns = batch.non_tensor_batch
    keys = zip(*(columns[name] for name in ("traj_uid", "turn", "call", "candidate")), strict=True)
    return [(str(uid), int(turn), int(call), int(candidate)) for uid, turn, call, candidate in keys]


def audit(run: str, step: int | None, size: AuditSize, device: str = "auto") -> Path:
    """Audit a checkpoint, print its table, and return the path of `audit/step_N.json`.

    Args:
        run: folder of a run, or `global_step_N`.
        step: number of the checkpoint; None: the newest.
        size: how much is replayed.
        device: auto, cpu or cuda.

    Raises one of `USER_ERRORS`.
    """
    saved = open_run(run, step)
    file = (saved.run_dir or saved.folder) / FOLDER / f"step_{saved.step:06d}.json"
    with audited_team(saved, device) as team, asyncio.Runner() as runner:
        result = runner.run(_audited(team, size))
    result = {"format": 1, "step": saved.step} | result
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(result, indent=1) + "\n").encode())
    show(result, Console())
    Console().print(str(file), markup=False, highlight=False, soft_wrap=True)
    return file


async def _audited(team: AuditedTeam, size: AuditSize) -> dict[str, Any]:
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    step = await play_step(team)
    decisions = decisions_of(step.episodes, step.rows)
    audited = spread(decisions, size.decisions, size.seed)
    if not audited:
        raise AgentSystemError(f"step {step.number} has no trained reply to audit")
    rewards = [e.team_reward for e in step.episodes]
    say(
        f"step {step.number}: {len(step.episodes)} episodes, mean team reward {np.mean(rewards):.3f}, "
        f"{len(decisions)} decisions, {_tokens(step.samples.episodes):,} tokens"
    )
    if len(set(rewards)) == 1:
        say(
            f"every episode of the step has the team reward {rewards[0]:.3g}: unless other replies change "
            "it, nothing can be measured; audit an earlier or later checkpoint with --step"
        )
    say(_cost(audited, size, step))
    outcomes = await _replayed(team, audited, size, step.number, console)
    measured = Measured.of(outcomes, decisions)
    causes = Counter(outcome.cause for outcome in outcomes if outcome.cause)
    result = {
        "played": step.number,
        "tasks": len({d.episode.uid for d in audited}),
        "decisions": len(audited),
        "alternatives": size.alternatives,
        "continuations": size.continuations,
        "seed": size.seed,
        "replies": sum(outcome.replies for outcome in outcomes),
        "tokens": sum(outcome.tokens for outcome in outcomes),
        "episodes": {"number": len(rewards), "mean": float(np.mean(rewards)), "sd": float(np.std(rewards))},
        "restored": {"yes": len(measured.outcomes), "no": dict(causes.most_common())},
        "table": [],
        "estimators": [],
        "left_out": dict(step.left_out),
    }
    if measured.outcomes:
        result["table"] = effects_table(measured, len(rewards), float(np.var(rewards)), size.seed)
        result["estimators"] = estimator_rows(measured, step.advantages, step.tokens, step.used, size.seed)
    return result


def _cost(audited: list[Decision], size: AuditSize, step: PlayedStep) -> str:
    """Return what replays will cost, as a line."""
    replies = expected_replies(audited, size)
    calls = sum(len(e.samples) + len(e.unheard) for e in step.episodes)
    return (
        f"{len(audited)} decisions x ({size.alternatives} alternatives + {size.alternatives + 1} arms x "
        f"{size.continuations} continuations): about {replies:,} replies, as many as "
        f"{replies / max(calls, 1):.1f} steps sample"
    )


async def _replayed(
    team: AuditedTeam, audited: list[Decision], size: AuditSize, step: int, console: Console
) -> list[DecisionOutcome]:
    with Progress(
        TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("replaying", total=len(audited))
        async with team.replayer.playing(len(audited)) as player:
            arms = ArmPlayer(
                player, team.replays, size, step,
                by_prompt=not team.replayer.orchestra.uses_prompts,
                on_outcome=lambda outcome: progress.advance(task),
            )  # fmt: skip
            return await arms.play(audited)


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the tables of an audit."""
    restored = result["restored"]
    console.print(
        f"restored {restored['yes']} of {result['decisions']} decisions; sampled {result['replies']:,} "
        f"replies, {result['tokens']:,} tokens",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    for cause, count in restored["no"].items():
        console.print(f"  not restored: {count} x {cause}", markup=False, highlight=False, soft_wrap=True)
    effects = Table(title="Who mattered: sd of the team reward due to the choice, 95 % interval over tasks")
    for heading in ("agent", "turn", "decisions", "effect", "share of variance", "no other action"):
        effects.add_column(heading, justify="left" if heading == "agent" else "right", no_wrap=True)
    for row in result["table"]:
        share = "-" if row["share"] is None else _interval(row["share"], row["share_low"], row["share_high"])
        effects.add_row(
            row["agent"] if row["turn"] is None else "", str(row["turn"] or "all"), str(row["decisions"]),
            _interval(row["effect"], row["low"], row["high"]), share, f"{row['no_other_action']:.0%}",
        )  # fmt: skip
    print_table(effects, console)
    agreement = Table(title="Do advantages know it? Rank correlation with (reply - alternatives)")
    for heading in (
        "estimator",
        "agent",
        "Spearman",
        "by chance",
        "reliability",
        "A = 0",
        "tokens",
        "verdict",
    ):
        agreement.add_column(
            heading, justify="left" if heading in ("estimator", "agent") else "right", no_wrap=True
        )
    for row in result["estimators"]:
        has = row["spearman"] is not None
        agreement.add_row(
            (row["name"] + (" (the run's)" if row["used"] else "")) if row["agent"] is None else "",
            row["agent"] or "all",
            f"{row['spearman']:.2f}" if has else "-",
            f"{row['shuffled_low']:.2f} to {row['shuffled_high']:.2f}" if has else "-",
            f"{row['reliability']:.2f}", f"{row['zero_advantages']:.0%}",
            f"{row['tokens']:,}", row["verdict"],
        )  # fmt: skip
    print_table(agreement, console)


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
