"""The world `lookup`: its products and skills, its team in Python and as a file, and that structure matters
in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_system.workflows
from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.task import task_from_row
from agent_system.testing import check_env, make_tokenizer, scripted_team
from agent_system.workflows.graph import Team
from agent_system.workflows.graph.source import write_text
from agent_system.workflows.lookup import CHECKER, FILER, SOLVER, LookupEnv, LookupEnvOptions
from agent_system.workflows.lookup.world.generate import TASKS
from agent_system.workflows.lookup.world.products import LETTERS, LookupProduct, products, shelf_rule
from agent_system.workflows.lookup.world.skills import LookupSkills
from tests.agent_system.workflows.plays import ends, plays
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

FILE = Path(agent_system.workflows.__path__[0]) / "lookup" / "team.yaml"
SKILLS = LookupSkills()
BY_NAME = {p.name: p for p in products(0)}
RULE = shelf_rule(0)
TASK = Task("t", "red kiwi shelf", "demo", "B", {"asks": "shelf", "code": "A"})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def tasks(count: int) -> list[Task]:
    rows = TASKS.split(count, 0, 0).train
    return [task_from_row({**row, "index": i}) for i, row in enumerate(rows)]


def product_of(prompt: str) -> LookupProduct:
    words = prompt.replace(":", " ").split()
    return next(BY_NAME[name] for a, b in pairwise(words) if (name := f"{a} {b}") in BY_NAME)


def solver(prompt: str, request: Any) -> str:
    return f"code {SKILLS.code(product_of(prompt), random.Random(request.seed))}"


def checker(prompt: str, request: Any) -> str:
    letter = next(
        (word for word in reversed(prompt.split()) if word[:1] in LETTERS and len(word.split("<")[0]) == 1),
        "",
    )
    approved = SKILLS.is_approved(product_of(prompt), letter[:1], random.Random(request.seed))
    return "right" if approved else "wrong"


def filer(prompt: str, request: Any) -> str:
    letter = prompt.split("File: ")[1][0]
    return f"shelf {SKILLS.shelf(letter, RULE, random.Random(request.seed))}"


SCRIPTS: Mapping[str, Callable[..., str]] = {SOLVER: solver, CHECKER: checker, FILER: filer}


def test_products_are_those_of_the_page() -> None:
    for seed in (0, 1):
        made = products(seed)
        assert len({p.name for p in made}) == 512 and set(Counter(p.code for p in made).values()) == {64}
        assert sum(bool(p.trap) for p in made) == 205 and sum(p.held_out for p in made) == 128
        assert all(p.trap != p.code != p.shelf == shelf_rule(seed)[p.code] for p in made)
        assert made == products(seed)
    assert products(0) != products(1)


def test_tasks_ask_for_both_and_test_tasks_are_of_other_products() -> None:
    split = TASKS.split(768, 256, 0)
    names = [{row["prompt"][0]["content"] for row in rows} for rows in (split.train, split.test)]
    assert [len(n) for n in names] == [768, 256]
    held_out = {name.rsplit(" ", 1)[0] for name in names[1]}
    assert held_out == {p.name for p in products(0) if p.held_out}
    assert not held_out & {name.rsplit(" ", 1)[0] for name in names[0]}
    for row in split.test:
        product = product_of(row["prompt"][0]["content"])
        asks = row["extra_info"]["asks"]
        assert row["reward_model"]["ground_truth"] == getattr(product, asks)
        assert row["extra_info"]["code"] == product.code
    with pytest.raises(AgentSystemError, match="768 different train tasks, not 769"):
        TASKS.split(769, 0, 0)


def test_skills_are_the_rates() -> None:
    rng = random.Random(0)
    said = {
        kind: Counter(
            "code" if letter == p.code else "trap" if letter == p.trap else "other"
            for p in products(0)
            if bool(p.trap) == (kind == "trap")
            for letter in [SKILLS.code(p, rng) for _ in range(40)]
        )
        for kind in ("usual", "trap")
    }
    share = {(k, name): n / sum(c.values()) for k, c in said.items() for name, n in c.items()}
    assert share["usual", "code"] == pytest.approx(0.55, abs=0.02)
    assert share["trap", "code"] == pytest.approx(0.30, abs=0.02)
    assert share["trap", "trap"] == pytest.approx(0.60, abs=0.02)
    p = products(0)[0]
    for letter in LETTERS:
        right = sum(SKILLS.is_approved(p, letter, rng) == (letter == p.code) for _ in range(2000)) / 2000
        assert right == pytest.approx(0.95, abs=0.02)
        filed = sum(SKILLS.shelf(letter, RULE, rng) == RULE[letter] for _ in range(2000)) / 2000
        assert filed == pytest.approx(0.97, abs=0.02)
    assert SKILLS.shelf("", RULE, rng) in LETTERS


async def test_the_team_and_its_metrics(tokenizer: Any) -> None:
    replies = {SOLVER: ["code C", "code A"], CHECKER: ["wrong", "right"], FILER: ["shelf B"]}
    team = scripted_team("lookup", replies, tokenizer=tokenizer, env_params={"skill_reward": 0.5})
    (episode,) = (await team.collect([TASK], 1, step=0)).episodes
    assert [s.agent_id for s in episode.samples] == [SOLVER, CHECKER, SOLVER, CHECKER, FILER]
    assert [s.request.messages[0]["content"] for s in episode.samples] == [
        "Code: red kiwi shelf", "Check: red kiwi shelf C", "Code: red kiwi shelf", "Check: red kiwi shelf A",
        "File: A",
    ]  # fmt: skip
    assert [s.rewards.local_reward for s in episode.samples] == [0.0, 0.5, 0.5, 0.5, 0.5]
    assert episode.team_reward == 1.0
    assert episode.info == {
        "success": 1.0,
        "solver/right": 1.0,
        "checker/right": 1.0,
        "filer/right": 1.0,
        "tries": 2,
    }


@pytest.mark.parametrize(
    ("replies", "options", "reward"),
    [
        ({SOLVER: ["A"], FILER: ["B"]}, {"tries": 1}, 1.0),
        ({SOLVER: ["code C"], FILER: ["B"]}, {"tries": 1}, 1.0),
        ({SOLVER: ["none", "?", "code A"], CHECKER: ["?", "wrong"], FILER: ["it is (b)."]}, {}, 1.0),
        ({SOLVER: ["code A"], CHECKER: ["wrong? right"], FILER: ["shelf BC"]}, {}, 0.0),
    ],
)
async def test_invalid_replies_and_other_options(
    tokenizer: Any, replies: dict[str, list[str]], options: dict[str, Any], reward: float
) -> None:
    team = scripted_team("lookup", replies, tokenizer=tokenizer, options=options)
    (episode,) = (await team.collect([TASK], 1, step=0)).episodes
    assert (episode.team_reward, episode.failure) == (reward, None)


async def test_a_single_agent_says_what_is_asked(tokenizer: Any) -> None:
    team = scripted_team("single", {"Single Agent": ["shelf B"]}, env_name="lookup", tokenizer=tokenizer)
    (episode,) = (await team.collect([TASK], 1, step=0)).episodes
    assert (
        episode.team_reward == 1.0
        and episode.samples[0].request.messages[0]["content"] == "Code: red kiwi shelf"
    )


@pytest.mark.parametrize(
    "change", [{"asks": "price"}, {"code": "Z"}, {"code": ""}, {"code": "AB"}, {"asks": None}]
)
def test_tasks_of_others_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AgentSystemError, match=r"needs reward_model.ground_truth and extra_info.code"):
        LookupEnv().check_task(Task("t", "x", "demo", "B", {**TASK.extra, **change}))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_reward_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(AgentSystemError, match=r"env.params.skill_reward must be a finite number"):
        LookupEnvOptions(value)


@given(plays((SOLVER, CHECKER, FILER, "Nobody"), st.sampled_from([*LETTERS, "right", "wrong"])))
def test_the_environment_conforms(play: list[Any]) -> None:
    if ends(LookupEnv(), TASK, play):
        check_env(lambda seed: LookupEnv(seed=seed), TASK, play, team_range=(0.0, 1.0))


async def episodes_of(tokenizer: Any, text: str, folder: Path, count: int = 256, **more: Any) -> Any:
    (folder / "team.yaml").write_text(text)
    agents = {n: s for n, s in SCRIPTS.items() if f"{n}" in text.split("do:", 1)[1]}
    options = {"file": str(folder / "team.yaml")}
    team = scripted_team("graph", agents, env_name="lookup", options=options, tokenizer=tokenizer, **more)
    return (await team.collect(tasks(count), 1, step=0)).episodes


def made(steps: str, returned: str) -> str:
    """A team with the agents of the file that the steps call."""
    agents = Team.load(FILE).source.value["agents"]
    called = {name: agent for name, agent in agents.items() if name in steps}
    return write_text({"team": 1, "agents": called}) + f"do:\n{steps}\nreturn: {returned}\n"


async def test_the_file_makes_the_calls_of_the_python_team(tokenizer: Any, tmp_path: Path) -> None:
    python = scripted_team("lookup", SCRIPTS, tokenizer=tokenizer)
    theirs = (await python.collect(tasks(200), 1, step=0)).episodes
    ours = await episodes_of(tokenizer, FILE.read_text(), tmp_path, 200)
    for mine, other in zip(ours, theirs, strict=True):
        assert [
            (s.agent_id, s.request.prompt_ids, s.request.seed, s.action, s.valid, s.rewards.reward)
            for s in mine.samples
        ] == [
            (s.agent_id, s.request.prompt_ids, s.request.seed, s.action, s.valid, s.rewards.reward)
            for s in other.samples
        ]
    assert {len(e.samples) for e in theirs} >= {2, 3, 4, 5, 6}


FILED = "- if: {observation: asks, is: shelf}\n  do: [{call: Filer, id: shelf, sees: [code]}]"
STRUCTURES = {
    "alone": ("- {call: Solver, id: code}", "code"),
    "chain": (f"- {{call: Solver, id: code}}\n{FILED}", "[shelf, code]"),
    "vote": ("- {vote: Solver, n: 5, id: code}", "code"),
    "checked": (FILE.read_text().split("do:\n", 1)[1].split("return")[0], "[shelf, code]"),
}


async def test_structure_matters(tokenizer: Any, tmp_path: Path) -> None:
    """Alone and voted on, codes of shelf tasks fail; the Filer helps, the Checker more."""
    found = {}
    for name, (steps, returned) in STRUCTURES.items():
        episodes = await episodes_of(tokenizer, made(steps, returned), tmp_path)
        found[name] = sum(e.team_reward for e in episodes) / len(episodes)
    assert found["alone"] < 0.3 < found["chain"] < found["checked"], found
    assert found["alone"] < found["vote"] < found["chain"] + 0.1 and found["checked"] > 0.6, found


async def test_a_tree_compares_letters(tokenizer: Any) -> None:
    tree = {"tree": TreeConfig(k=3), "reward": RewardConfig(team_scope="call")}
    team = scripted_team("lookup", SCRIPTS, tokenizer=tokenizer, **tree)
    episodes = (await team.collect(tasks(8), 1, step=0)).episodes
    assert not any(e.failure for e in episodes)
    assert {s.identity.candidate for e in episodes for s in e.samples} == {0, 1, 2}


@pytest.mark.parametrize("asks", ["code", "shelf"])
@pytest.mark.parametrize("code", LETTERS)
@pytest.mark.parametrize("shelf", LETTERS)
def test_each_role_is_scored_by_its_job(asks: str, code: str, shelf: str) -> None:
    truth = shelf if asks == "shelf" else code
    env = LookupEnv(LookupEnvOptions())
    env.reset(Task("t", f"red kiwi {asks}", "demo", truth, {"asks": asks, "code": code}))

    def scores(agent_id: str, words: Any) -> set[str]:
        """The replies with a score, each in a fork of its own, as in tree sampling."""
        right = set()
        for word in words:
            fork = env.fork()
            fork.act(agent_id, word)
            right |= {word} if fork.score(agent_id, word).team == 1.0 else set()
        return right

    assert scores(SOLVER, LETTERS) == {code}
    wrong_code = LETTERS[LETTERS.index(code) - 1]
    for letter, verdict in ((wrong_code, "wrong"), (code, "right")):
        env.act(SOLVER, letter)
        assert scores(CHECKER, ["right", "wrong", ""]) == {verdict}
        assert scores(FILER, LETTERS) == ({truth} if letter == code else set())
    assert scores("Single Agent", LETTERS) == {truth}
