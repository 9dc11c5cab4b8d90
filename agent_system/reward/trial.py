"""A reward function on one real task before training: whether it gives in a thread of the run what
it gives in the main thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from agent_system.environment import Task
from agent_system.reward.functions import NaiveRewardManager, build_manager
from agent_system.threads import DaemonExecutor, run_plain, watched
from verl.trainer.config.reward import RewardConfig

logger = logging.getLogger(__name__)

# A function that takes longer, as a judge may, is not tried in the main thread.
LONGEST_S = 10.0


def try_function(settings: RewardConfig, task: Task) -> None:
    """Warn if verl's `compute_score` gives another score, or an error, in a thread of the run than
    in the main thread.

    It is called with the ground truth of a task as the solution: in a thread, where errors that it
    handles are watched, and in the main thread. Functions of episodes are not tried, since there is
    no episode yet.

    Args:
        settings: names the function.
        task: one of the data.
    """
    manager = build_manager(settings)
    if (
        not isinstance(manager, NaiveRewardManager)
        or threading.current_thread() is not threading.main_thread()
    ):
        return
    function = manager.function
    assert function is not None, "the manager has checked it"
    arguments = {
        "data_source": task.data_source,
        "solution_str": str(task.ground_truth),
        "ground_truth": task.ground_truth,
        "extra_info": {**task.extra, "num_turns": 2, "rollout_reward_scores": {}, "experiment_name": ""},
        **manager.kwargs,
    }
    threads = DaemonExecutor(1)
    try:
        in_thread = threads.submit(_outcome, function, arguments, True).result(LONGEST_S)
    except FutureTimeoutError:
        return
    finally:
        threads.shutdown()
    in_main = _outcome(function, arguments, False)
    if (
        in_thread != in_main and _outcome(function, arguments, False) == in_main
    ):  # not a function that draws random numbers
        name = getattr(function, "__qualname__", type(function).__name__)
        logger.warning(
            "reward.custom_reward_function: %s gives %s for a task in a thread of the run, where "
            "it is called, and %s in the main thread; let it do what needs the main thread in a process of its own",
            name,
            in_thread,
            in_main,
        )


def _outcome(function: Callable[..., Any], arguments: Mapping[str, Any], is_watched: bool) -> str:
    """Return the result of a call as text, or its error."""
    try:
        result = run_plain(function, **arguments) if is_watched else function(**arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result, is_watched))
        return f"{result!r:.80}"
    except (
        Exception,
        SystemExit,
    ) as error:
        # functions of users raise what they like; in training it costs the episode
        return f"{type(error).__name__}: {error}"[:200]


async def _awaited(result: Any, is_watched: bool) -> Any:
    return await (watched(result) if is_watched else result)
