"""The search in the scripted world: what it finds, and the pitfalls of such searches."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.evolve.archive import (
    Archive,
    EvolutionPolicy,
    RandomPolicy,
    TeamCandidate,
    TreePolicy,
    mean_score,
    mean_tokens,
    pareto_front,
)
from agent_system.evolve.edits import Parts
from agent_system.evolve.evaluate import Batch, PlayedEpisode
from agent_system.evolve.ledger import LedgerError
from agent_system.evolve.report import report
from agent_system.evolve.search import FINALISTS, TeamSearch, plays_like
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ScriptedPlayer, hand_written
from tests.agent_system.evolve.conftest import MakeSearch
from verl.protocol.generate import EngineGoneError


def interval(mean: float, count: int, confidence: float) -> tuple[float, float]:
    del count, confidence
    return mean, mean


def lines(search: TeamSearch) -> list[dict[str, Any]]:
    text = (search.ledger.folder / "ledger.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("policy", ["evolution", "tree"])
async def test_it_finds_a_better_team_than_the_start(make_search: MakeSearch, policy: str) -> None:
    search = make_search(policy=policy, tasks=64, confirm=128, generations=8, children=4, num_val=64)
    chosen = await search.run()
    held_out = mean_score(chosen.held_out)
    assert held_out > mean_score(search.archive.candidates[0].held_out) + 0.1
    assert len(chosen.held_out) == 64
    text = report(search, interval)
    assert f"**{held_out:.1%} (" in text and "(optimism)" in text
    assert "```mermaid" in text and "````diff" in text


async def test_a_team_is_played_once_whatever_its_names(make_search: MakeSearch, start: Team) -> None:
    search = make_search(generations=6, children=4)
    await search.run()
    keys = [c.key for c in search.archive.candidates]
    assert len(keys) == len(set(keys)) > 10
    renamed = Team.parse(start.text().replace("code", "answer"))
    search = make_search("renamed")
    object.__setattr__(search.inputs, "start", [start, renamed])
    await search.run()
    assert [c.key for c in search.archive.candidates if c.parent is None] == [
        search.archive.candidates[0].key
    ]


async def test_random_delays_give_the_same_ledger(make_search: MakeSearch) -> None:
    contents = []
    for name in ("without", "with"):
        rng = random.Random(name)

        async def delay(rng: random.Random = rng) -> None:
            await asyncio.sleep(0 if rng.random() < 0.5 else rng.random() / 1000)

        player = ScriptedPlayer(1, delay=delay if name == "with" else None)
        search = make_search(name, player=player)
        await search.run()
        contents.append((search.ledger.folder / "ledger.jsonl").read_bytes())
    assert contents[0] == contents[1]


async def test_failed_episodes_score_0_and_are_counted_by_cause(make_search: MakeSearch) -> None:
    def cause(team: Team, place: int) -> str:
        return "TimeoutError" if team.calls > 1 and place % 2 else ""

    search = make_search(player=ScriptedPlayer(1, cause=cause))
    await search.run()
    failed = [e for c in search.archive.candidates for e in c.episodes if e.cause]
    assert failed and {e.score for e in failed} == {0.0}
    total = sum(bool(e.cause) for c in search.archive.candidates for e in (*c.episodes, *c.confirmed))
    assert f"{total} x TimeoutError" in report(search, interval)
    for candidate in search.archive.candidates:
        if candidate.team.calls > 1 and candidate.episodes:
            assert sum(bool(e.cause) for e in candidate.episodes) == len(candidate.episodes) // 2


@pytest.mark.parametrize(("score", "why"), [(0.0, "'EngineError': 32"), (1.0, "score 1 on all 32 tasks")])
async def test_a_start_that_solves_all_or_nothing_stops_the_search(
    make_search: MakeSearch, score: float, why: str
) -> None:
    class Same:
        async def play(
            self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False
        ) -> Batch:
            return Batch(
                [[PlayedEpisode(score, 3, 3, "" if score else "EngineError")] * count for _ in teams]
            )

    with pytest.raises(AgentSystemError, match="no edit can be told from another") as caught:
        await make_search(player=Same()).run()
    assert why in str(caught.value)


async def test_an_engine_that_is_gone_stops_the_search_and_loses_no_batch(make_search: MakeSearch) -> None:
    class Dying(ScriptedPlayer):
        async def play(
            self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False
        ) -> Batch:
            batches.append(first)
            if len(batches) == dies_at:
                raise EngineGoneError("gone")
            return await super().play(teams, first, count, held_out=held_out)

    batches: list[int] = []
    dies_at = 0
    search = make_search("whole", player=Dying(1))
    await search.run()
    whole = len(batches)
    content = (search.ledger.folder / "ledger.jsonl").read_bytes()
    batches.clear()
    for dies_at in (2, 5, 8):  # noqa: B007 - read by the player
        search = make_search("dying", player=Dying(1))
        with pytest.raises(EngineGoneError):
            await search.run()
        search.ledger.close()
    search = make_search("dying", player=Dying(1))
    await search.run()
    assert len(batches) == whole + 3
    assert (search.ledger.folder / "ledger.jsonl").read_bytes() == content


async def test_a_budget_is_kept_and_its_last_batch_is_counted(make_search: MakeSearch) -> None:
    said: list[str] = []
    search = make_search(generations=40, children=4, budget_tokens=6000, say=said.append)
    await search.run()
    assert "the budget of 6000 tokens buys at most" in said[1]
    played = [line for line in lines(search) if line["event"] in ("play", "confirm")]
    assert search.counts.spent == sum(line["engine_tokens"] for line in played) <= 6000
    assert search.generation < 40
    assert sum(len(rows) for line in played for rows in line["episodes"].values()) == search.counts.episodes
    told = [c for c in search.archive.candidates if c.state == "unfinished"]
    assert all(f"{c.number}: " in report(search, interval) for c in told)


async def test_a_search_that_its_budget_ends_says_so_and_its_finalists_fit(make_search: MakeSearch) -> None:
    """Three of its finalists do not fit: with them it would spend more, and say nothing."""
    keys = {"tasks": 64, "confirm": 256, "generations": 10, "children": 4, "budget_tokens": 12_000}
    search = make_search(seed=4, num_val=16, **keys)
    chosen = await search.run()
    assert search.generation < 10 and search.stopped == "the budget is spent"
    assert search.counts.spent <= 1.1 * 12_000, "the last batch, the best and the start file"
    finalists = [c for c in search.archive.candidates if c.confirmed]
    assert search.archive.candidates[0] in finalists and chosen in finalists
    ranked = sorted(search.archive.whole, key=lambda c: (-search.archive.search_utility(c), c.number))
    assert ranked[0] in finalists and search.too_expensive > 0
    assert lines(search)[-1]["finalists"] == [c.key for c in finalists]
    text = report(search, interval)
    assert f"It stopped in generation {search.generation}: the budget is spent." in text
    assert f"- budget: {search.counts.spent:,} of 12,000 tokens" in text
    assert "held out do not count for it" in text and f"{search.too_expensive} finalists did not fit" in text


async def test_a_search_with_enough_budget_does_not_say_that_it_stopped(make_search: MakeSearch) -> None:
    search = make_search(budget_tokens=1_000_000)
    await search.run()
    assert (search.generation, search.stopped, search.too_expensive) == (3, "", 0)
    assert "It stopped" not in report(search, interval)


async def test_a_file_without_fresh_tasks_has_no_score_on_them_in_the_report(make_search: MakeSearch) -> None:
    search = make_search(generations=6, children=4, num_val=16)
    await search.run()
    start = search.archive.candidates[0]
    tokens = start.episodes[0].tokens
    search.archive.candidates[0].confirmed.clear()
    rows = [row for row in report(search, interval).splitlines() if row.startswith("| 0 |")]
    assert rows == [f"| 0 |  | {tokens:.1f} | {mean_score(start.held_out):.1%} " + rows[0].split("% ", 1)[1]]


async def test_a_budget_for_less_than_three_generations_is_an_error(make_search: MakeSearch) -> None:
    with pytest.raises(
        AgentSystemError, match=r"buys 0 generations.*a search needs 3: [0-9]+ or more"
    ) as caught:
        await make_search(budget_tokens=300).run()
    enough = int(str(caught.value).split("needs 3: ")[1].split()[0])
    await make_search("enough", budget_tokens=enough).run()


def content_of(search: TeamSearch) -> list[bytes]:
    search.ledger.close()
    return [(search.ledger.folder / name).read_bytes() for name in ("ledger.jsonl", "replies.jsonl")]


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ({"generations": 6, "budget_tokens": 300}, {"generations": 6, "budget_tokens": 6000}),
        ({"generations": 40, "budget_tokens": 4000}, {"generations": 40, "budget_tokens": 6000}),
        ({"generations": 40, "budget_tokens": 4000, "num_val": 16, "confirm": 0},
         {"generations": 40, "budget_tokens": 6000, "num_val": 16, "confirm": 0}),
        ({"generations": 3}, {"generations": 5}),
        ({"generations": 3, "num_val": 32}, {"generations": 4, "num_val": 32}),
    ],
)  # fmt: skip
async def test_a_search_goes_on_with_a_larger_budget_as_if_it_had_it_at_first(
    make_search: MakeSearch, before: dict[str, Any], then: dict[str, Any]
) -> None:
    search = make_search(**before)
    if before.get("budget_tokens") == 300:
        with pytest.raises(AgentSystemError, match="a search needs 3"):
            await search.run()
    else:
        await search.run()
    paid = [line for line in lines(search) if line["event"] in ("play", "proposal")]
    search.ledger.close()
    player = ScriptedPlayer(1)
    again = make_search(player=player, **then)
    await again.run()
    whole = make_search("whole", **then)
    await whole.run()
    assert content_of(again) == content_of(whole)
    assert [line for line in lines(again) if line["event"] in ("play", "proposal")][: len(paid)] == paid
    assert len(lines(again)) > len(paid)


async def test_a_search_that_is_killed_where_it_goes_on_ends_as_the_whole_one(
    make_search: MakeSearch,
) -> None:
    class Dying(ScriptedPlayer):
        async def play(
            self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False
        ) -> Batch:
            raise EngineGoneError("gone")

    whole = make_search("whole", generations=5)
    await whole.run()
    search = make_search()
    await search.run()
    search.ledger.close()
    search = make_search(player=Dying(1), generations=5)
    with pytest.raises(EngineGoneError):
        await search.run()
    search.ledger.close()
    search = make_search(generations=5)
    await search.run()
    assert content_of(search) == content_of(whole)


async def test_a_smaller_budget_removes_no_line(make_search: MakeSearch) -> None:
    search = make_search(generations=5)
    await search.run()
    content = content_of(search)
    search = make_search(generations=3)
    with pytest.raises(LedgerError, match=r"more than evolve\.generations and evolve\.budget_tokens allow"):
        await search.run()
    assert content_of(search) == content


def candidate(
    number: int, team: Team, score: float, tokens: int, critical: int, tasks: int = 64
) -> TeamCandidate:
    wins = round(score * tasks)
    played = [PlayedEpisode(float(i < wins), tokens, critical) for i in range(tasks)]
    return TeamCandidate(number, team, str(number), state="whole", episodes=played)


def test_parents_come_from_the_best_of_every_cell_of_the_map_and_from_the_front(start: Team) -> None:
    scores = [(0.2, 4, 4), (0.3, 5, 5), (0.6, 20, 20), (0.5, 20, 20), (0.55, 20, 4), (0.9, 100, 30)]
    archive = Archive(0.0, 0.01, [candidate(i, start, *s) for i, s in enumerate(scores)])
    best = archive.candidates[5].episodes
    archive.candidates.append(TeamCandidate(6, start, "6", state="out", episodes=best))
    policy = EvolutionPolicy()
    assert [c.number for c in policy.elites(archive)] == [1, 2, 4, 5]
    drawn = Counter(policy.parent(archive, random.Random(seed)).number for seed in range(400))
    # half of them the best of three of four cells: the best one unless it is not drawn, then the second;
    # the others any file of the front, which keeps what few tokens reach
    assert [c.number for c in pareto_front(archive.whole, lambda c: c.episodes)] == [0, 1, 2, 5]
    assert set(drawn) == {0, 1, 2, 5}
    for number, chance in ((0, 0.125), (1, 0.125), (2, 0.25), (5, 0.5)):
        assert drawn[number] / 400 == pytest.approx(chance, abs=0.06)


def test_a_tree_draws_every_file_and_better_ones_more_often(start: Team) -> None:
    archive = Archive(0.0, 0.01, [candidate(i, start, s, 4, 4) for i, s in enumerate((0.2, 0.4, 0.6))])
    chances = TreePolicy().chances(archive)
    assert sum(chances) == pytest.approx(1) and chances == sorted(chances) and chances[0] >= 0.1
    few = Archive(0.0, 0.01, [candidate(i, start, s, 4, 4, 16) for i, s in enumerate((0.25, 0.5, 0.75))])
    many = Archive(0.0, 0.01, [candidate(i, start, s, 4, 4, 256) for i, s in enumerate((0.25, 0.5, 0.75))])
    assert TreePolicy().chances(few)[2] < TreePolicy().chances(many)[2], "few tasks say less"


def test_the_front_the_finalists_and_the_cheaper_of_two_near_ties(start: Team) -> None:
    scores = [(0.2, 4), (0.5, 8), (0.45, 9), (0.6, 30), (0.605, 60), (0.58, 31), (0.59, 40), (0.1, 50)]
    archive = Archive(0.0, 0.02, [candidate(i, start, s, t, t, 1000) for i, (s, t) in enumerate(scores)])
    assert [c.number for c in pareto_front(archive.whole, lambda c: c.episodes)] == [0, 1, 3, 4]
    assert archive.incumbent().number == 3, "0.605 is less than the margin better, for twice the tokens"
    assert [c.number for c in archive.finalists(4)] == [0, 1, 3, 4, 5, 6]


async def test_fresh_tasks_alone_choose(make_search: MakeSearch) -> None:
    search = make_search(generations=6, children=4)
    chosen = await search.run()
    finalists = [c for c in search.archive.candidates if c.confirmed]
    assert chosen in finalists and all(len(c.confirmed) == 32 for c in finalists)
    assert chosen is search.archive.best(finalists, lambda c: c.confirmed)
    places = {
        (line["event"], line["first"]) for line in lines(search) if line["event"] in ("play", "confirm")
    }
    assert places == {("play", 0), ("play", 16), ("confirm", 32), ("confirm", 48)}


async def test_files_that_fall_early_make_room_for_others(make_search: MakeSearch) -> None:
    """A generation plays as many tasks as its `children` would to the end, but for less than one file."""
    search = make_search(tasks=64, generations=5, children=3)
    await search.run()
    files = [c for c in search.archive.candidates if c.parent is not None]
    assert any(c.state == "out" for c in files) and len(files) > 5 * 3
    for generation in range(1, 6):
        played = sum(len(c.episodes) for c in files if c.generation == generation)
        assert 2 * 64 < played <= 3 * 64


@pytest.mark.parametrize("keys", [{}, {"budget_tokens": 100_000}])
async def test_a_finalist_that_is_clearly_worse_plays_no_more_and_stays_in_the_front(
    make_search: MakeSearch, keys: dict[str, Any]
) -> None:
    search = make_search(tasks=64, confirm=256, generations=6, children=4, **keys)
    chosen = await search.run()
    finalists = [c for c in search.archive.candidates if c.confirmed]
    counts = {c.number: len(c.confirmed) for c in finalists}
    assert len(chosen.confirmed) == 256 and all(64 <= n <= 256 for n in counts.values())
    fewer = [c for c in finalists if counts[c.number] < 256]
    assert fewer, counts
    for c in fewer:
        worse = search.archive.mean_utility(c.confirmed)
        assert worse < search.archive.mean_utility(chosen.confirmed[: len(c.confirmed)])
    front = search.front()
    tokens = [mean_tokens(c.confirmed) for c in front]
    assert tokens == sorted(tokens) and min(finalists, key=lambda c: mean_tokens(c.confirmed)) is front[0]
    assert front[0] in fewer, "few tokens are worth a place, whatever they reach"


def test_of_files_with_equal_scores_on_all_tasks_the_cheapest_is_a_finalist(start: Team) -> None:
    scores = [(0.25, 8), (0.5, 16), (0.5, 12), (0.5, 14), (0.75, 40)]
    archive = Archive(0.001, 0.01, [candidate(i, start, s, t, t) for i, (s, t) in enumerate(scores)])
    assert [c.number for c in archive.finalists(2)] == [0, 2, 4]


def test_a_file_with_the_scores_of_any_earlier_one_is_not_kept(start: Team) -> None:
    earlier = candidate(0, start, 0.5, 8, 8)
    assert plays_like(candidate(1, start, 1.0, 8, 8, tasks=32), earlier)
    assert not plays_like(candidate(2, start, 1.0, 7, 7, tasks=32), earlier), "it is cheaper"
    assert not plays_like(candidate(3, start, 0.75, 8, 8, tasks=32), earlier)
    assert not plays_like(earlier, candidate(4, start, 1.0, 8, 8, tasks=32)), "that one fell before"


async def test_the_better_half_of_the_finalists_plays_on(make_search: MakeSearch) -> None:
    search = make_search(tasks=64, confirm=256, generations=8, children=4)
    await search.run()
    finalists = [c for c in search.archive.candidates if c.confirmed]
    assert len(finalists) > FINALISTS
    half = [c for c in finalists if len(c.confirmed) > 64]
    quarter = [c for c in half if len(c.confirmed) > 128]
    assert 2 <= len(half) <= (len(finalists) + 1) // 2 and 1 <= len(quarter) <= max((len(half) + 1) // 2, 2)
    for first, others in ((64, half), (128, quarter)):
        left_out = [c for c in finalists if len(c.confirmed) == first]
        worst = min(search.archive.mean_utility(c.confirmed[:first]) for c in others)
        assert all(search.archive.mean_utility(c.confirmed) <= worst for c in left_out)


def test_the_order_of_the_world_is_that_of_its_rates(parts: Parts) -> None:
    """Alone, with the Filer, with a vote, checked: each is better than the one before."""
    player = ScriptedPlayer(0)
    teams = [hand_written(tries, votes) for tries, votes in ((1, 1), (1, 3), (1, 5), (3, 1), (5, 1))]
    batch = asyncio.run(player.play(teams, 0, 768))
    scores = [mean_score(episodes) for episodes in batch.episodes]
    assert scores == sorted(scores)
    assert 0.4 < scores[0] < 0.5 and scores[-1] > 0.75


def test_a_random_search_draws_every_file_alike_whatever_it_scored(start: Team) -> None:
    archive = Archive(0.0, 0.01, [candidate(i, start, s, 4, 4) for i, s in enumerate((0.1, 0.9, 0.2, 0.5))])
    for number, state in ((1, "out"), (2, "unfinished"), (3, "playing")):
        archive.candidates[number].state = state
    drawn = Counter(RandomPolicy().parent(archive, random.Random(seed)).number for seed in range(400))
    assert set(drawn) == {0, 1}
    assert drawn[0] / 400 == pytest.approx(0.5, abs=0.08)
