"""Reward functions of the user: found, checked before a model loads, and called by the managers
`episode` and `naive`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.record import NUMBERS, EpisodeRecord
from agent_system.registry import RewardManagerRegistry
from agent_system.reward.manager import Reward, RewardManager, number
from verl.trainer.config.reward import AUTO, RewardConfig
from verl.utils.names import did_you_mean

VERLS_NAME = "compute_score"  # the function of a key that names none
# Its parameters in verl.
VERLS = ("data_source", "solution_str", "ground_truth", "extra_info")


@RewardManagerRegistry.register("episode")
class EpisodeRewardManager(RewardManager):
    """Calls `reward(episode, **kwargs)`."""

    def __init__(self, function: Callable[..., Any] | None, kwargs: Mapping[str, Any]) -> None:
        super().__init__(function, kwargs)
        self._call = checked(function, "reward.reward_manager.name=episode", "episode", **kwargs)

    def score(self, episode: EpisodeRecord) -> Any:
        """Return the function's result."""
        return self._call(episode, **self.kwargs)


@RewardManagerRegistry.register("naive")
class NaiveRewardManager(RewardManager):
    """Calls verl's `compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs)`
    on the reply with the team's answer.

    `solution_str` is the whole text of the last reply whose action is `episode.answer`, so that
    functions find the box or tag they look for; `episode.answer` itself if no reply has that
    action, and the last reply if the last turn gave no answer. `extra_info` is the row's, with
    `num_turns` (messages of the episode: a prompt and a reply per turn), `rollout_reward_scores`
    (empty: tools give no rewards) and `experiment_name`, as verl's managers `naive` and `gdpo` add
    them. A mapping must have a `score`; its other numbers are terms.
    """

    def __init__(self, function: Callable[..., Any] | None, kwargs: Mapping[str, Any]) -> None:
        super().__init__(function, kwargs)
        self._call = checked(function, "reward.reward_manager.name=naive", **dict.fromkeys(VERLS), **kwargs)

    def score(self, episode: EpisodeRecord) -> Any:
        """Return the function's result."""
        task = episode.task
        assert task is not None, "the collector sets the task"
        added = {
            "num_turns": 2 * episode.samples[-1].identity.turn,
            "rollout_reward_scores": {},
            "experiment_name": self.experiment_name,
        }
        return self._call(
            data_source=task.data_source,
            solution_str=self.solution(episode),
            ground_truth=task.ground_truth,
            extra_info={**task.extra, **added},
            **self.kwargs,
        )

    def solution(self, episode: EpisodeRecord) -> str:
        """Return `solution_str`."""
        replies = [s.generations[-1] for s in reversed(episode.samples) if s.identity.ends_call]
        if not episode.answer:
            return replies[0].text
        return next((s.text for s in replies if str(s.action) == episode.answer), episode.answer)

    def read(self, found: Any) -> Reward:
        """Return a score, or a mapping with `score`, as the team reward."""
        if not isinstance(found, Mapping):
            return super().read(found)
        if "score" not in found:
            raise AgentSystemError(
                f"compute_score returned a mapping without 'score'; it has {sorted(map(str, found))}"
            )
        score = number(found["score"], "compute_score, under 'score',")
        return Reward(
            score, {k: float(v) for k, v in found.items() if k != "score" and isinstance(v, NUMBERS)}
        )


@RewardManagerRegistry.register("naive_action")
class NaiveActionRewardManager(NaiveRewardManager):
    """As `naive`, but `solution_str` is `episode.answer`, the parsed action, without the rest of
    its reply.
    """

    def solution(self, episode: EpisodeRecord) -> str:
        """Return `solution_str`."""
        return episode.answer or super().solution(episode)


def checked(
    function: Callable[..., Any] | None, where: str, /, *arguments: Any, **named: Any
) -> Callable[..., Any]:
    """Return the function. Raise AgentSystemError if there is none, or it cannot be called with
    these arguments.
    """
    if function is None:
        raise AgentSystemError(f"{where} calls a function: set reward.custom_reward_function.path")
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        expected = ", ".join([*map(str, arguments), *named])
        raise AgentSystemError(
            f"{where}: {function.__qualname__}{inspect.signature(function)} cannot be called with "
            f"({expected}): {error}"
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    return function


def load_function(path: str, name: str, key: str) -> Callable[..., Any]:
    """Return a function of a file or module.

    Args:
        path: a file that ends in `.py`, or the name of a module.
        name: name of the function.
        key: the key that gives both, for messages.

    Raises:
        AgentSystemError: there is no such file, module or function, or importing it fails.
    """
    try:
        module = _load(str(Path(path).expanduser().resolve()) if path.endswith(".py") else path)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, FileNotFoundError) or (
            isinstance(error, ModuleNotFoundError) and error.name == path
        )
        what = (
            "no such file or module"
            if missing
            else f"importing it failed with {type(error).__name__}: {error}"
        )
        raise AgentSystemError(f"{key}: {path}: {what}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [
            n
            for n, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise AgentSystemError(
            f"{key}: {path} has no function {name!r}{did_you_mean(name, names)}; it has: "
            f"{', '.join(names) or 'none'}"
        )
    return function  # type: ignore[no-any-return]


def _place(text: str) -> tuple[str, str]:
    """Return the file or module, and the name of the function, of `file_or_module:function`.

    Folders may have colons in their names. verl's prefixes `pkg://` of a module and `file://` of a
    file say what the ending `.py` says.
    """
    path, _, name = text.rpartition(":")
    if not path or not name.isidentifier():
        path = text.removesuffix(":")
        name = VERLS_NAME
    if path.startswith("pkg://"):
        path = path.removeprefix("pkg://").replace("/", ".")
    return path.removeprefix("file://"), name


@cache
def _load(place: str) -> ModuleType:
    """Import a module, or a file once per process: functions of one file share its state."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(f"reward_functions_{Path(place).stem}", place)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_manager(settings: RewardConfig, experiment_name: str = "") -> RewardManager | None:
    """Return the manager of `reward.reward_manager.name`; None if the environment alone gives
    rewards.

    `auto` takes `naive` for a function that has a parameter of `VERLS`, and `episode` for any
    other.

    Raises:
        AgentSystemError: an unknown manager, a function that cannot be loaded, or one that the
            manager cannot call.
    """
    custom = settings.custom_reward_function
    name = settings.reward_manager.name
    if custom.path is None and name == AUTO:
        return None
    function = None
    if custom.path is not None:
        function = load_function(*_place(custom.path), "reward.custom_reward_function")
        if name == AUTO:
            name = "naive" if set(VERLS) & set(inspect.signature(function).parameters) else "episode"
    manager = RewardManagerRegistry.get(name)(function, custom.reward_kwargs)
    manager.experiment_name = experiment_name
    return manager
