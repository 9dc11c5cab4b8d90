"""Which episodes of a step are written."""

from dataclasses import dataclass
from typing import cast

import pytest

from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.report import drawn_groups, nothing_to_learn


@dataclass
class Episode:
    uid: str
    number: int


EPISODES = cast(list[FinishedEpisode], [Episode(f"task-{n % 6}", n) for n in range(24)])


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 4), (4, 4), (5, 8), (24, 24), (100, 24)])
def test_groups_are_whole_and_in_their_order(limit: int, count: int) -> None:
    episodes = cast(list[Episode], drawn_groups(EPISODES, limit))
    assert len(episodes) == count
    assert all(sum(other.uid == episode.uid for other in episodes) == 4 for episode in episodes)
    assert [episode.number for episode in episodes] == sorted(episode.number for episode in episodes)


def test_the_draw_does_not_depend_on_which_group_is_complete_first() -> None:
    uids = [{episode.uid for episode in drawn_groups(order, 8)} for order in (EPISODES, EPISODES[::-1])]
    assert uids[0] == uids[1] != {"task-0", "task-1"}


SILENT = {
    "agent/writer/advantage_abs": 0.0,
    "agent/walker/advantage_abs": 0.0,
    "agent/walker/valid_rate": 0.0,
    "agent/writer/valid_rate": 1.0,
    "critic/rewards/mean": 0.25,
}


def test_a_step_without_any_advantage_says_whose_replies_are_invalid() -> None:
    warning = nothing_to_learn(SILENT)
    assert "mean 0.25; valid replies: writer 100%, walker 0%" in warning


@pytest.mark.parametrize(
    "metrics", [{}, {"critic/rewards/mean": 0.0}, SILENT | {"agent/walker/advantage_abs": 1e-9}]
)
def test_one_advantage_or_no_agent_is_no_warning(metrics: dict[str, float]) -> None:
    assert not nothing_to_learn(metrics)
