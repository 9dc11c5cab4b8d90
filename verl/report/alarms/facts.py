"""What rules read of the records of a step: counts, not texts.

Every episode is read once, while its texts are at hand, and nothing of them is kept but hashes that
hold in this process.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.report.alarms.credit_facts import row_key
from verl.report.texts import LATER_PROMPTS, is_heard
from verl.utils import plain

# Episodes that are kept as examples of one thing.
EXAMPLES = 5
# More different actions than these are no verdicts; they are not counted apart.
MOST_ACTIONS = 64
# Shorter replies may be half one character without being garbled.
SHORTEST = 32
# Of a long reply only the beginning is looked at.
LONGEST = 10_000
REPEATS = 10
# Shares of tasks with a prompt that other tasks have as well, above which prompts are no tasks.
AMBIGUOUS = 0.1


def is_garbled(text: str) -> bool:
    """Return whether half of the characters of a reply are one, or whether it repeats four words 10
    times and consists of them to a half; blanks do not count, nor what follows 10,000 characters.
    """
    words = text[:LONGEST].split()
    letters = "".join(words)
    if len(letters) < SHORTEST:
        return False
    if 2 * max(Counter(letters).values()) >= len(letters):
        return True
    if len(words) < 4 * REPEATS:
        return False
    grams = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    return max(grams.values()) >= max(REPEATS, len(words) / 8)


def failure_kind(failure: str) -> str:
    """Return a failure without its numbers and details, to count equal ones."""
    first_line = failure.strip().splitlines()[0] if failure.strip() else "unknown"
    return re.sub(r"\d+(\.\d+)?", "N", first_line)[:100]


@dataclass
class AgentFacts:
    """What the training episodes of a step say about one agent.

    Attributes:
        calls: committed replies.
        texts, garbled: replies with a text; garbled ones.
        actions: how often each action occurred; empty if there are too many different ones.
        successes: success of the episodes, summed over the calls with each action.
        heard: calls whose reply or action reappears later, or after which the world changed.
        copied: calls whose reply is that of another agent before.
        pairs, equal: pairs of replies to one prompt of a task; equal ones.
        row_pairs: replies with such a pair: `row_key` -> half of its number of pairs.
        seeds: pairs of replies to one prompt that were sampled with equal seeds.
        examples: numbers of episodes, by what they show.
    """

    calls: int = 0
    texts: int = 0
    garbled: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    successes: Counter[str] = field(default_factory=Counter)
    many_actions: bool = False
    heard: int = 0
    copied: int = 0
    pairs: int = 0
    equal: int = 0
    row_pairs: dict[int, float] = field(default_factory=dict)
    seeds: int = 0
    examples: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def count_action(self, action: str, success: float | None) -> None:
        """Count an action and the success of its episode."""
        if self.many_actions:
            return
        key = action if len(action) <= 200 else f"{hash(action):x}"
        self.actions[key] += 1
        self.successes[key] += success or 0.0  # type: ignore[assignment]
        if len(self.actions) > MOST_ACTIONS:
            self.many_actions = True
            self.actions.clear()
            self.successes.clear()

    def note(self, kind: str, number: int) -> None:
        """Keep an episode as an example."""
        examples = self.examples[kind]
        if len(examples) < EXAMPLES and number not in examples:
            examples.append(number)


@dataclass
class GroupFacts:
    """The episodes of one task in a step: their number, successes, replies and cut ones, and the
    lowest and highest reward.
    """

    episodes: int = 0
    successes: float = 0.0
    replies: int = 0
    cut: int = 0
    low: float = math.inf
    high: float = -math.inf


@dataclass
class StepFacts:
    """What the episodes of one step say.

    Attributes:
        episodes: those that did not fail.
        failures: kinds of failures with their numbers.
        examples: numbers of episodes, by what they show.
        agents: by agent.
        groups: by task of the step.
        shares: numbers of the episodes' `info` named `<role>/specificity` or `<role>/right`, as
            (episodes, sum).
        scores: values of a judge's score, by the name of the term.
        tasks: of a validation, (episodes, successes) by task.
    """

    episodes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    agents: dict[str, AgentFacts] = field(default_factory=dict)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    shares: dict[str, tuple[int, float]] = field(default_factory=dict)
    scores: dict[str, Counter[float]] = field(default_factory=dict)
    tasks: dict[str, tuple[int, float]] = field(default_factory=dict)
    # (group, agent, prompt) -> hash of the reply, seed, key and episode of each row
    _rows: dict[tuple[str, str, int], list[tuple[int, int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def agent(self, agent_id: str) -> AgentFacts:
        """Return the facts of an agent, which may be new."""
        return self.agents.setdefault(agent_id, AgentFacts())

    def note(self, kind: str, number: int) -> None:
        """Keep an episode as an example."""
        examples = self.examples[kind]
        if len(examples) < EXAMPLES and number not in examples:
            examples.append(number)

    def rates(self) -> dict[str, float]:
        """Return the success of each task of a validation."""
        return {task: successes / episodes for task, (episodes, successes) in self.tasks.items() if episodes}

    def close(self) -> StepFacts:
        """Count pairs of equal replies, when all episodes are read; returns itself."""
        for (_, agent_id, _), rows in self._rows.items():
            if len(rows) < 2:
                continue
            facts = self.agent(agent_id)
            replies = Counter(reply for reply, *_ in rows)
            facts.pairs += len(rows) * (len(rows) - 1) // 2
            facts.equal += sum(n * (n - 1) // 2 for n in replies.values())
            for reply, _, key, number in rows:
                facts.row_pairs[key] = (len(rows) - 1) / 2
                if replies[reply] > 1:
                    facts.note("equal", number)
            shared = Counter(seed for _, seed, *_ in rows if seed)
            facts.seeds += sum(n * (n - 1) // 2 for n in shared.values())
            for _, seed, _, number in rows:
                if shared[seed] > 1:
                    facts.note("seed", number)
        self._rows.clear()
        return self

    def add(self, number: int, episode: Mapping[str, Any], *, validation: bool) -> None:
        """Read an episode.

        Args:
            number: of the episode in the report.
            episode: its object in a trajectory file.
            validation: it belongs to a validation.
        """
        info = _mapping(episode.get("info"))
        reward = _number(episode.get("team_reward"))
        success = _number(info.get("success"))
        if validation:
            task = f"{episode.get('data_source')} {episode.get('task_id')}"
            if not episode.get("failure"):
                episodes, successes = self.tasks.get(task, (0, 0.0))
                self.tasks[task] = episodes + 1, successes + _rate(success, reward)
            return
        if episode.get("failure"):
            self.failures[failure_kind(str(episode["failure"]))] += 1
            self.note("failed", number)
            return
        calls = _calls(episode)
        sampled = [call for call in calls if not call.get("greedy")]
        if calls and not sampled:
            return  # of a greedy baseline
        self.episodes += 1
        if success is not None and success <= 0:
            self.note("wrong", number)
        self._add_group(str(episode.get("uid")), sampled, success, reward)
        self._add_terms(info, episode, sampled)
        committed = [call for call in sampled if call.get("committed", True)]
        self._add_calls(number, committed, success, str(episode.get("answer") or ""))
        for call in sampled:
            self._add_row(number, episode, call)

    def _add_group(
        self, uid: str, calls: Sequence[Mapping[str, Any]], success: float | None, reward: float | None
    ) -> None:
        group = self.groups.setdefault(uid, GroupFacts())
        group.episodes += 1
        group.successes += _rate(success, reward)
        group.replies += len(calls)
        group.cut += sum(call.get("stop_reason") == "length" for call in calls)
        if reward is not None:
            group.low = min(group.low, reward)
            group.high = max(group.high, reward)

    def _add_terms(
        self, info: Mapping[str, Any], episode: Mapping[str, Any], calls: Iterable[Mapping[str, Any]]
    ) -> None:
        for name, value in info.items():
            number = _number(value)
            if number is not None and str(name).endswith(("/specificity", "/right")):
                count, total = self.shares.get(name, (0, 0.0))
                self.shares[name] = count + 1, total + number
        for entry in (episode, *calls):
            score = _number(_mapping(entry.get("reward_terms")).get("model_score"))
            if score is not None:
                self.scores.setdefault("model_score", Counter())[score] += 1

    def _add_calls(
        self, number: int, calls: Sequence[Mapping[str, Any]], success: float | None, answer: str
    ) -> None:
        replies = [str(call.get("reply") or "").strip() for call in calls]
        for place, call in enumerate(calls):
            facts = self.agent(str(call.get("agent_id")))
            facts.calls += 1
            action = str(call.get("action") or "")
            if action:
                facts.count_action(action, success)
            reply = replies[place]
            later = calls[place + 1 : place + 1 + LATER_PROMPTS]
            prompts = [str(other.get("prompt") or "") for other in later]
            # after which the world differs, the reply need not be read
            changes = bool(later) and later[0].get("anchor", "") != call.get("anchor", "")
            if (reply and changes) or is_heard(reply, action, prompts, answer):
                facts.heard += 1
            else:
                facts.note("unheard", number)
            earlier = (
                text
                for text, other in zip(replies[:place], calls[:place], strict=True)
                if other.get("agent_id") != call.get("agent_id")
            )
            if reply and reply in earlier:
                facts.copied += 1
                facts.note("copied", number)

    def _add_row(self, number: int, episode: Mapping[str, Any], call: Mapping[str, Any]) -> None:
        """Count a reply, candidates that were not committed included."""
        facts = self.agent(str(call.get("agent_id")))
        reply = call.get("reply")
        if not isinstance(reply, str) or call.get("repeated"):
            return
        facts.texts += 1
        if is_garbled(reply):
            facts.garbled += 1
            facts.note("garbled", number)
        if not call.get("valid", True):
            facts.note("invalid", number)
        if call.get("stop_reason") == "length":
            facts.note("cut", number)
        if not call.get("trained", True) or not isinstance(call.get("prompt"), str):
            return
        place = (_whole(call.get(name)) for name in ("turn", "call", "candidate"))
        key = row_key(episode.get("traj_uid"), *place)
        group = str(episode.get("uid")), str(call.get("agent_id")), hash(call["prompt"])
        self._rows[group].append((hash(reply), _whole(call.get("seed")), key, number))


@dataclass
class Overlap:
    """Training and validation tasks with one first prompt.

    Attributes:
        shared: number of validation tasks that are training tasks as well.
        tasks: number of validation tasks.
        episodes: numbers of validation episodes that show it.
    """

    shared: int = 0
    tasks: int = 0
    episodes: tuple[int, ...] = ()


@dataclass
class RunFacts:
    """What the episodes of a run say, by split and step."""

    steps: dict[tuple[str, int], StepFacts] = field(default_factory=dict)
    # first prompt -> its task, and one episode with it
    _prompts: dict[str, dict[int, tuple[int, int]]] = field(default_factory=lambda: {"train": {}, "val": {}})
    # training tasks whose first prompt another one has as well
    _ambiguous: set[int] = field(default_factory=set)

    def add(self, step: int, split: str, number: int, episode: Mapping[str, Any]) -> None:
        """Read an episode.

        Args:
            step: of its file.
            split: `train` or `val`.
            number: of the episode in the report.
            episode: its object in a trajectory file.
        """
        facts = self.steps.setdefault((split, step), StepFacts())
        facts.add(number, episode, validation=split == "val")
        calls = _calls(episode)
        first = calls[0] if calls else {}
        if isinstance(prompt := first.get("prompt"), str) and prompt:
            key = hash(prompt)
            task = hash((str(episode.get("data_source")), str(episode.get("task_id"))))
            prompts = self._prompts[split]
            if split == "train" and prompts.get(key, (task, 0))[0] != task:
                self._ambiguous.add(task)
            prompts.setdefault(key, (task, number))

    def take(self, split: str, step: int, *, keep: bool = True) -> StepFacts | None:
        """Return the facts of a step, whose episodes are all read; None if it has none."""
        key = split, step
        facts = self.steps.get(key) if keep else self.steps.pop(key, None)
        return facts.close() if facts is not None else None

    def overlap(self) -> Overlap:
        """Return the tasks that training and validation share; none where first prompts do not tell
        tasks apart, as in worlds that always begin with one state.
        """
        train = self._prompts["train"]
        validation = self._prompts["val"]
        if len(self._ambiguous) > AMBIGUOUS * len(train) or len(validation) < 2:
            return Overlap(0, len(validation))
        shared = validation.keys() & train.keys()
        # keys are hashes, whose order differs from process to process
        numbers = sorted(validation[key][1] for key in shared)
        return Overlap(len(shared), len(validation), tuple(numbers[:EXAMPLES]))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _calls(episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = episode.get("calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _number(value: Any) -> float | None:
    finite = plain.number(value)
    return None if finite is None else float(finite)


def _rate(success: float | None, reward: float | None) -> float:
    return success if success is not None else reward or 0.0
