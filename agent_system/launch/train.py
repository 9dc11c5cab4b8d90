"""Train a team: check the configuration, start the workers, and pass datasets, worker groups and
collector to `RayPPOTrainer`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agent_system.launch.checks import USER_ERRORS, check_run
from agent_system.launch.collector import build_collector
from agent_system.launch.env_workers import check_cpus, env_workers
from agent_system.sandbox import close_shared
from verl.trainer.checkpoint.store import CONFIG_FILE
from verl.trainer.config import RunConfig
from verl.trainer.config.command import fail, log_to_terminal
from verl.trainer.plan.command_line import (
    explain,
    prepare,
    register_config,
    report_config_errors,
    save_config,
)
from verl.trainer.plan.derived_values import table_row
from verl.trainer.ppo.controller import build_controller
from verl.trainer.ppo.interrupt import StoppedAtOnce, stopping_at_once
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.disk import writing
from verl.utils.host_memory import kills_are_told
from verl.utils.tracking import Tracking

logger = logging.getLogger(__name__)


def run(config: RunConfig) -> RayPPOTrainer:
    """Check the configuration, train, print validation scores before and after, and return the
    trainer.
    """
    checked = check_run(config)
    plan = checked.plan
    run_dir = checked.run_dir
    config_file = run_dir / ("config_eval.yaml" if config.trainer.val_only else CONFIG_FILE)
    with writing(config_file):
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, config_file)
    for agent_id, row in plan.speakers.items():
        logger.info(table_row(agent_id, row, checked.adapter_sizes))
    for remote in plan.api:
        logger.info(
            "agent %s -> %s at %s (not trained)", remote.agent_id, remote.policy_id, remote.api.base_url
        )
    for line in plan.describe():
        logger.info(line)
    for group in plan.groups:
        logger.info("worker group %s -> %s", group.wg_id, group.describe_devices())
    logger.info("output folder: %s", run_dir)
    with ExitStack() as started:
        state = None
        # An evaluation adds files of its own to those of the run.
        if not config.trainer.val_only:
            from verl.trainer.run_state import run_state  # of training alone

            state = started.enter_context(
                run_state(plan, config.agent.agent_ids, config.trainer.device, run_dir, checked.notes)
            )
        started.enter_context(kills_are_told())
        started.callback(close_shared)
        controller = build_controller(config)
        started.callback(controller.shutdown)
        check_cpus(config.env.workers, config.trainer, config.rollout, config.ray_init, plan)
        started.enter_context(stopping_at_once())
        team = TeamWorkers(config, plan, controller, run_dir / "logs")
        started.callback(team.shutdown)
        team.start()
        workers = started.enter_context(env_workers(config))
        collector = build_collector(config, plan, checked.tokenizers, team.engines.clients, workers)
        tracking = Tracking(
            config.trainer.project_name, checked.name, config.trainer.logger, asdict(config), run_dir
        )
        started.callback(tracking.finish)
        trainer = RayPPOTrainer(config, plan, team, collector, checked.train, checked.val, tracking, run_dir)
        if state is not None:
            # before the workers end, which may take long
            started.push(state.note)
            state.follow(trainer.progress, team.open_spans, lambda: collector.in_progress)
            trainer.report.state = state
        trainer.fit()
        if state is not None:
            state.stopped = trainer.stopped_by is not None
    # the table of validations, which nothing before it reads
    from verl.trainer.ppo.validation import rows_before_after
    from verl.utils.console import accuracy_table, before_after_table, print_table

    progress = trainer.progress
    rows = rows_before_after(progress.before, progress.after)
    print_table(
        accuracy_table(rows, progress.global_step) if config.trainer.val_only else before_after_table(rows)
    )
    return trainer


def entry(task: Callable[[RunConfig], RayPPOTrainer]) -> Callable[[DictConfig], None]:
    """Wrap `task`: an error of the user is one line on stderr and exit status 1; a stop by a signal
    exits with 128 + its number.
    """

    def wrapped(cfg: DictConfig) -> None:
        try:
            config = OmegaConf.to_object(cfg)
            assert isinstance(config, RunConfig)
            stopped_by = task(config).stopped_by
        except OmegaConfBaseException as error:
            fail(explain(error, sys.argv[1:]), 1)
        except USER_ERRORS as error:
            parts = [str(error), *getattr(error, "__notes__", ())]
            fail(("\n" if "\n" in parts[0] else "; ").join(parts), 1)
        except StoppedAtOnce as stop:
            fail(f"stopped at once: {stop}; the last checkpoint is unchanged", 128 + stop.number)
        if stopped_by is not None:
            sys.exit(128 + stopped_by)

    return wrapped


@hydra.main(version_base=None, config_name=register_config())
def main(cfg: DictConfig) -> None:
    """Train with the configuration that Hydra has read."""
    entry(run)(cfg)


def cli() -> None:
    """Run the command line: `main`, with Hydra's errors about keys and values reported in one line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    log_to_terminal()
    arguments = sys.argv[1:]
    with report_config_errors(arguments):
        command = prepare(arguments)
        if warning := command.warning():
            logger.warning(warning)
        sys.argv[1:] = command.overrides
        main()
