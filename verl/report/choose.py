"""Which groups of episodes have their texts in a report of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from verl.report.episodes import EpisodeIndex

SEED = "0"


@dataclass(frozen=True)
class EpisodeGroup:
    """All episodes of one task in one step.

    Attributes:
        run: number of the run.
        step, split, uid: which group it is.
        episodes: numbers of its episodes in the run's index.
    """

    run: int
    step: int
    split: str
    uid: str
    episodes: tuple[int, ...]

    @property
    def draw(self) -> bytes:
        """Place in a random order that is the same for every report of the run."""
        key = f"{SEED}/{self.step}/{self.split}/{self.uid}"
        return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def tiers(runs: Sequence[EpisodeIndex]) -> list[tuple[float, list[EpisodeGroup]]]:
    """Return all groups in order of importance: lists with the share of the space for texts that
    each may fill, what does not fit being in the last list once more.

    1. of the first and the last training step, and 2. of the first and the last validation, those
       of interest first;
    3. of each step those of interest: with the highest and the lowest reward, one with equal
       rewards, one with a failed episode, the one with the longest replies;
    4. of the other validations, 5. all others, in random order.
    """
    parts: list[list[EpisodeGroup]] = [[], [], [], [], []]
    for number, episodes in enumerate(runs):
        groups = [
            EpisodeGroup(number, *key, tuple(members))  # type: ignore[arg-type]
            for key, members in episodes.groups().items()
        ]
        picks = _of_interest(episodes, groups)
        ends = {split: _ends(group.step for group in groups if group.split == split) for split in _SPLITS}
        for group in sorted(groups, key=lambda group: (group not in picks, group.draw)):
            parts[_tier(group, ends, group in picks)].append(group)
    rest = [group for part in parts for group in part]
    return [(share, part) for share, part in zip((0.25, 0.25, 1.0, 1.0, 1.0), parts, strict=True)] + [
        (1.0, rest)
    ]


_SPLITS = ("train", "val")


def _tier(group: EpisodeGroup, ends: dict[str, set[int]], is_pick: bool) -> int:
    if group.step in ends[group.split]:
        return 0 if group.split == "train" else 1
    if is_pick:
        return 2
    return 3 if group.split == "val" else 4


def _ends(steps: Iterable[int]) -> set[int]:
    distinct = set(steps)
    return {min(distinct), max(distinct)} if distinct else set()


def _of_interest(episodes: EpisodeIndex, groups: Sequence[EpisodeGroup]) -> set[EpisodeGroup]:
    """Return the groups of each step and split that a reader looks for."""
    rewards = [reward or 0 for reward in episodes.episodes.get("team_reward")]
    failures = episodes.episodes.get("failure")
    lengths = _lengths(episodes)
    by_step: dict[tuple[int, str], list[EpisodeGroup]] = {}
    for group in sorted(groups, key=lambda group: group.draw):
        by_step.setdefault((group.step, group.split), []).append(group)
    picks: set[EpisodeGroup] = set()
    for members in by_step.values():
        means = {group: _mean(rewards, group) for group in members}
        picks.add(max(members, key=means.__getitem__))
        picks.add(min(members, key=means.__getitem__))
        picks.add(max(members, key=lambda group: max(lengths[at] for at in group.episodes)))
        silent = (group for group in members if len({rewards[at] for at in group.episodes}) == 1)
        failed = (group for group in members if any(failures[at] for at in group.episodes))
        picks |= {group for group in (next(silent, None), next(failed, None)) if group is not None}
    return picks


def _mean(rewards: Sequence[Any], group: EpisodeGroup) -> float:
    return sum(rewards[at] for at in group.episodes) / len(group.episodes)


def _lengths(episodes: EpisodeIndex) -> list[int]:
    """Return the characters of all replies of each episode."""
    characters = episodes.calls.get("reply_chars")
    starts = episodes.episodes.get("first_call")
    counts = episodes.episodes.get("calls")
    return [sum(characters[at : at + n]) for at, n in zip(starts, counts, strict=True)]
