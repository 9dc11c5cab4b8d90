"""Episodes and calls of a run as columns, read line by line: no text stays in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl.report.alarms.facts import RunFacts
from verl.report.columns import Columns
from verl.report.folder import MOST_DAMAGED, EpisodeFile
from verl.report.lines import Line, read_lines
from verl.report.texts import LATER_PROMPTS, Numbers, cut, is_heard
from verl.utils.plain import clean, number, text

EPISODE_COLUMNS = (
    "step", "split", "uid", "traj_uid", "task_id", "data_source", "index", "team_reward", "success",
    "turns", "failure", "answer", "left_out", "turn_rewards", "reward_terms", "started", "task_text",
    "first_call", "calls", "chunk", "row", "file", "line",
)  # fmt: skip
# Columns of calls that are copied from the entry of a call, with the value of an entry without it.
NUMBERS = {
    "turn": None, "call": None, "candidate": 0, "act_reward": None, "fork_reward": None,
    "candidate_reward": None, "local_reward": None, "team_reward": None, "step_reward": None,
    "mixed_reward": None, "invalid_penalty": None, "overlong_penalty": None, "reward": None,
    "prompt_tokens": None, "response_tokens": None, "version": None, "order": None,
    "prior_replies": None, "final_call": None, "began": None, "ended": None, "waited": None,
    "depth": 0, "dropped_context": 0,
}  # fmt: skip
FLAGS = {
    "committed": True, "greedy": False, "trained": True, "valid": True, "local_given": None,
    "summary": False, "explored": None, "masked": False, "repeated": False,
}  # fmt: skip
# Seconds, of which hundredths are enough: more digits are most of an index.
TIMES = ("began", "ended", "waited")
VALUES = ("versions", "request", "reward_terms", "token_rewards")
FEATURES = ("reply", "reply_chars", "heard", "anchor")
CALL_COLUMNS = (
    "agent", *NUMBERS, *FLAGS, "unheard", "action", "stop_reason", "design", "seed", *VALUES, *FEATURES,
)  # fmt: skip
# Rewards of single tokens beyond this number are in the texts only.
MOST_TOKEN_REWARDS = 500_000


@dataclass
class EpisodeIndex:
    """All episodes of a run without their texts.

    Args:
        folder: of the run.
        facts: reads each episode for the rules of alarms.

    Attributes:
        episodes, calls: columns; the calls of an episode lie together.
        agents: distinct (agent, policy) in order of appearance.
        trained: those of which a call is trained.
        files: of trajectories that have been read.
        damaged: file, line and cause of what could not be read.
        offsets, sizes: place of each episode's line in its file, in bytes.
    """

    folder: Path
    facts: RunFacts = field(default_factory=RunFacts)
    episodes: Columns = field(default_factory=lambda: Columns(EPISODE_COLUMNS))
    calls: Columns = field(default_factory=lambda: Columns(CALL_COLUMNS))
    agents: dict[tuple[str, str], int] = field(default_factory=dict)
    trained: set[tuple[str, str]] = field(default_factory=set)
    files: list[EpisodeFile] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")
        self._replies = Numbers()
        self._anchors = Numbers()
        self._tasks = Numbers()
        self._token_rewards = 0

    def read(self, file: EpisodeFile) -> None:
        """Add the episodes of a file."""
        number_of_file = len(self.files)
        self.files.append(file)
        try:
            with file.path.open("rb") as stream:
                for line in read_lines(stream):
                    why = line.why or _fault(line.row)
                    if why or line.row is None:
                        self._damage(file.path, line.number, why)
                    else:
                        self._add(line.row, line, file, number_of_file)
        except OSError as error:
            self._damage(file.path, None, error.strerror or str(error))

    def _damage(self, path: Path, line: int | None, why: str) -> None:
        if len(self.damaged) < MOST_DAMAGED:
            name = path.relative_to(self.folder).as_posix()
            self.damaged.append({"file": name, "line": line, "why": why})

    def _add(self, episode: Mapping[str, Any], line: Line, file: EpisodeFile, number_of_file: int) -> None:
        entries = [(call, False) for call in episode["calls"]]
        entries += [(call, True) for call in episode.get("unheard") or ()]
        info = episode.get("info")
        prompts = [text(call.get("prompt")) for call, _ in entries]
        self.episodes.append(
            {
                "step": file.step,
                "split": file.split,
                **{name: text(episode.get(name)) for name in ("uid", "traj_uid", "task_id", "data_source")},
                **{name: number(episode.get(name)) for name in ("index", "team_reward", "turns", "started")},
                "success": number(info.get("success")) if isinstance(info, Mapping) else None,
                "failure": cut(text(episode.get("failure"))),
                "answer": cut(text(episode.get("answer"))),
                "left_out": "",
                "turn_rewards": clean(episode.get("turn_rewards")) or [],
                "reward_terms": clean(episode.get("reward_terms")),
                "task_text": self._tasks.of(prompts[0] if prompts else ""),
                "first_call": self.calls.length,
                "calls": len(entries),
                "chunk": -1,
                "row": 0,
                "file": number_of_file,
                "line": line.number,
            }
        )
        self.facts.add(file.step, file.split, self.episodes.length - 1, episode)
        self.offsets.append(line.offset)
        self.sizes.append(line.size)
        for at, (call, unheard) in enumerate(entries):
            self._add_call(
                call, unheard, prompts[at + 1 : at + 1 + LATER_PROMPTS], text(episode.get("answer"))
            )

    def _add_call(
        self,
        call: Mapping[str, Any],
        unheard: bool,
        later_prompts: list[str],
        answer: str,
    ) -> None:
        reply = text(call.get("reply"))
        action = text(call.get("action"))
        row: dict[str, Any] = {name: number(call.get(name, default)) for name, default in NUMBERS.items()}
        row |= {name: round(row[name], 2) for name in TIMES if row[name] is not None}
        row |= {name: number(call.get(name, default)) for name, default in FLAGS.items()}
        row |= {name: clean(call[name]) if name in call else None for name in VALUES}
        row["token_rewards"] = self._within_limit(row["token_rewards"])
        agent = (text(call.get("agent_id")), text(call.get("policy_id")))
        if row["trained"] and not unheard:
            self.trained.add(agent)
        row["agent"] = self.agents.setdefault(agent, len(self.agents))
        row["unheard"] = int(unheard)
        row["action"] = cut(action)
        row["stop_reason"] = text(call.get("stop_reason"))
        row["design"] = text(call.get("design"))
        row["seed"] = text(call.get("seed"))
        row["reply"] = self._replies.of(reply)
        row["reply_chars"] = len(reply)
        row["heard"] = int(is_heard(reply, action, later_prompts, answer))
        row["anchor"] = self._anchors.of(text(call.get("anchor")))
        self.calls.append(row)

    def _within_limit(self, rewards: Any) -> Any:
        if not isinstance(rewards, list):
            return None
        self._token_rewards += len(rewards)
        return rewards if self._token_rewards <= MOST_TOKEN_REWARDS else True

    def groups(self) -> dict[tuple[int, str, str], list[int]]:
        """Return the numbers of the episodes of each group: (step, split, uid)."""
        members: dict[tuple[int, str, str], list[int]] = {}
        keys = zip(*(self.episodes.get(name) for name in ("step", "split", "uid")), strict=True)
        for at, key in enumerate(keys):
            members.setdefault(key, []).append(at)
        return members

    def whole(self, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes with their texts as they are in their files; an empty one if its line has
        changed since.
        """
        of_file = self.episodes.get("file")
        for at in numbers:
            try:
                with self.files[of_file[at]].path.open("rb") as stream:
                    stream.seek(self.offsets[at])
                    line = next(read_lines(stream), None)
            except OSError:
                line = None
            yield line.row if line and line.row and not _fault(line.row) else {"calls": []}


def _fault(row: Mapping[str, Any] | None) -> str:
    """Return why an object is no episode; empty if it is one."""
    calls = (row or {}).get("calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return "no episode: 'calls' is not a list of objects"
    unheard = (row or {}).get("unheard") or []
    if not isinstance(unheard, list) or not all(isinstance(call, dict) for call in unheard):
        return "no episode: 'unheard' is not a list of objects"
    return ""
