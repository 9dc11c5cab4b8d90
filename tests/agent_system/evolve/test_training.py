"""Training between generations, in the scripted world: what is trained, what plays again, and that scores of
different weights are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.evolve.archive import Archive, TeamCandidate, mean_tokens, pareto_front
from agent_system.evolve.edits import normal
from agent_system.evolve.evaluate import PlayedEpisode
from agent_system.evolve.report import report
from agent_system.launch.evolve_training import GenerationTraining, teams_of_a_run
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ScriptedPlayer
from tests.agent_system.evolve.conftest import MakeSearch

FIVE = {"generations": 5, "train_steps": 7}


class Trainer:
    """Makes the Solver of a scripted world better.

    Attributes:
        trained: generation and keys of the teams of every training.
        uses: number of the weights that teams play with, after each call.
    """

    def __init__(self, player: ScriptedPlayer) -> None:
        self.player = player
        self.trained: list[tuple[int, int, list[str]]] = []
        self.uses: list[int] = []

    async def train(self, number: int, generation: int, teams: Sequence[Team]) -> dict[str, Any]:
        self.trained.append((number, generation, [team.key() for team in teams]))
        return {"tokens": 100, "roles": {"Solver": f"gen_{generation}/policies/solver"}, "number": number}

    def use(self, result: Mapping[str, Any]) -> None:
        self.uses.append(result["number"])
        # replies of other weights are others
        self.player.seed = 1000 + result["number"]
        self.player._requests.clear()


def trained(make_search: MakeSearch, folder: str, **changes: Any) -> tuple[Any, Trainer]:
    player = ScriptedPlayer(1)
    player.tasks, player.rule  # noqa: B018 - of the first seed: the world stays, replies change
    trainer = Trainer(player)
    return make_search(folder, player=player, trainer=trainer, **FIVE | changes), trainer


async def test_the_best_files_are_trained_and_play_again(make_search: MakeSearch, tmp_path: Path) -> None:
    search, trainer = trained(make_search, "a")
    chosen = await search.run()
    assert [row[:2] for row in trainer.trained] == [(1, 1), (2, 2), (3, 3), (4, 4)], "none after the last"
    assert trainer.uses == [1, 2, 3, 4]
    files = search.archive.candidates
    again = {c.key for c in files if c.earlier}
    assert again == {key for _, _, keys in trainer.trained for key in keys}
    assert all(1 <= len(keys) <= 4 for _, _, keys in trainer.trained)
    for candidate in files:
        assert len({e.weights for e in candidate.episodes}) <= 1
        weights = [episodes[0].weights for episodes in (*candidate.earlier, candidate.episodes) if episodes]
        assert weights == sorted(set(weights))
    assert {e.weights for e in chosen.episodes} == {e.weights for e in chosen.confirmed} == {4}
    assert search.counts.training == 400 and search.counts.spent == search.counts.play + search.counts.confirm
    text = report(search, lambda mean, count, confidence: (mean, mean))
    assert "4 trainings of 7 steps, which generated 400 tokens" in text
    assert "adapters of its roles: Solver: `gen_4/policies/solver`" in text
    assert "not played after training" in text


async def test_a_search_with_training_goes_on_from_its_ledger(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    search, _ = trained(make_search, "a")
    await search.run()
    search.ledger.close()
    ledger = tmp_path / "a" / "ledger.jsonl"
    content = ledger.read_bytes()
    whole = report(search, lambda mean, count, confidence: (mean, mean))
    lines = content.splitlines(keepends=True)
    for count in [number for number, line in enumerate(lines) if b'"train"' in line or number == 3]:
        for more in (0, 1):
            ledger.write_bytes(b"".join(lines[: count + more]))
            again, trainer = trained(make_search, "a")
            await again.run()
            again.ledger.close()
            assert ledger.read_bytes() == content
            assert trainer.uses == [1, 2, 3, 4]
            assert report(again, lambda mean, count, confidence: (mean, mean)) == whole


async def test_the_budget_pays_for_playing_again_and_not_for_training(make_search: MakeSearch) -> None:
    search, trainer = trained(make_search, "a", budget_tokens=6000, generations=20)
    await search.run()
    assert search.stopped == "the budget is spent" and 1 <= len(trainer.trained) < 19
    assert search.counts.spent < 1.2 * 6000


async def test_a_training_after_which_no_file_could_play_again_is_left_out(make_search: MakeSearch) -> None:
    search, trainer = trained(make_search, "a", budget_tokens=6000, generations=20)
    await search._begin()
    files = search.archive.whole
    again = search.settings.tasks * mean_tokens(files[0].episodes)
    search.counts.play += int(search.left() - again) + 1
    await search._train()
    assert trainer.trained == [] and search.archive.weights == 0 and files[0].state == "whole"
    search.counts.play -= 1
    await search._train()
    assert len(trainer.trained) == 1 and search.counts.spent <= 6000


async def test_a_name_of_another_origin_is_no_role(make_search: MakeSearch, start: Team) -> None:
    """It would inherit the adapter of its namesake."""
    name = next(iter(start.agents))

    def split(base: str, new: str) -> Team:
        value = normal(start.source.value)
        value["agents"] |= {
            "Other": dict(value["agents"][name]),
            new: {"like": base, "prompt": "{env_prompt}"},
        }
        value["do"] = [*value["do"], {"call": new, "id": "z"}, {"call": "Other", "id": "y"}]
        return Team.parse(json.dumps(value))

    for trains, new in ((True, False), (False, True)):
        search, _ = trained(make_search, f"{trains}")
        if not trains:
            search.inputs = replace(search.inputs, trainer=None)
        search.archive.candidates.append(TeamCandidate(0, split(name, "Writer"), "a"))
        assert search._is_new(split(name, "Reader"))
        assert search._is_new(split("Other", "Writer")) is new
        assert search._is_new(split(name, "writer")) is new, "they have one folder"


def test_trainings_of_another_search_are_not_gone_on_with(tmp_path: Path) -> None:
    training = GenerationTraining([], 1, tmp_path, {})
    training.check_new()
    (tmp_path / "gen_2").mkdir()
    with pytest.raises(AgentSystemError, match="gen_2 is a training of another search") as error:
        training.check_new()
    assert "\n" not in str(error.value)


def played(score: float, weights: int) -> list[PlayedEpisode]:
    return [PlayedEpisode(score, 3, 3, weights=weights)] * 4


def test_scores_of_different_weights_are_an_error(start: Team) -> None:
    files = [TeamCandidate(n, start, str(n), state="whole", episodes=played(0.5, n)) for n in range(2)]
    archive = Archive(0.005, 0.01, files, weights=1)
    said = (
        "scores of different weights cannot be compared: episodes were played after 0 and after 1 trainings"
    )
    for compare in (
        archive.incumbent,
        lambda: archive.finalists(4),
        lambda: pareto_front(files, lambda c: c.episodes),
    ):
        with pytest.raises(AgentSystemError, match=said):
            compare()
    assert archive.keys == {"1"}, "what the old weights played may be proposed again"


AGENTS = """\
team: 1
agents:
  Solver: {{prompt: "{solver}: {{env_prompt}}", answer: number}}
"""
CHECKER = '  Checker: {prompt: "Check: {env_prompt}{team_context}", answer: {choice: [right, wrong]}}\n'
LOOP = """\
do:
  - loop: 2
    do:
      - {vote: Solver, n: 3, id: a}
      - {call: Checker, id: v, unless: {loop: last}}
      - {stop: {of: v, is: right}}
return: a
"""


def test_an_agent_with_another_prompt_is_another_agent_of_the_same_role() -> None:
    split = AGENTS.format(solver="Solve") + (
        '  Solver 1: {like: Solver, prompt: "Think: {env_prompt}"}\n'
        "do: [{call: Solver, id: a}, {call: Solver 1, id: b}]\nreturn: [b, a]\n"
    )
    teams = [
        Team.parse(AGENTS.format(solver="Solve") + CHECKER + LOOP),
        Team.parse(AGENTS.format(solver="Solve well") + CHECKER + LOOP),
        Team.parse(split),
    ]
    run = teams_of_a_run(teams)
    assert run.roles == {
        "Solver": "Solver",
        "Checker": "Checker",
        "Solver variant 2": "Solver",
        "Solver 1": "Solver 1",
    }
    assert all(
        agent["as"] in ("Solver", "Checker", "Solver 1")
        for value in run.values
        for agent in value["agents"].values()
    )
    assert run.values[1]["do"][0]["do"][0]["vote"] == "Solver variant 2"
    assert list(run.values[2]["agents"]) == ["Solver", "Solver 1"]
    assert run.values[2]["agents"]["Solver 1"]["answer"] == "number"


def test_a_role_starts_from_its_own_adapter_or_from_that_of_the_one_it_was_split_from(tmp_path: Path) -> None:
    text = (
        f"{AGENTS.format(solver='Solve')}{CHECKER}"
        '  Solver 1: {like: Solver, prompt: "Think: {env_prompt}"}\n'
        "do: [{call: Solver, id: c}, {call: Solver 1, id: a}, {call: Checker, id: b}]\nreturn: a\n"
    )
    teams = [Team.parse(text)]
    training = GenerationTraining([], 1, tmp_path, {})
    assert [training.start_of(name, teams) for name in ("Solver 1", "Checker")] == [None, None]
    training.adapters["Solver"] = tmp_path / "gen_1" / "policies" / "solver"
    assert training.start_of("Solver 1", teams) == str(training.adapters["Solver"])
    training.adapters["Solver 1"] = tmp_path / "gen_2" / "policies" / "solver_1"
    assert training.start_of("Solver 1", teams) == str(training.adapters["Solver 1"])
    assert training.start_of("Checker", teams) is None
