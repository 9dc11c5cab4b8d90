"""Which episodes of a step are written."""

from dataclasses import dataclass
from typing import cast

import pytest

from verl.trainer.ppo.collect.protocol import FinishedEpisode
from verl.trainer.ppo.report import drawn_groups


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
