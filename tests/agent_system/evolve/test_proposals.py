"""Edits that a model writes: what it is told, what it may say, and what invalid replies cost. The teams play
in the real collector with scripted engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system.environment import Task
from agent_system.evolve.edits import EditRefused, Parts
from agent_system.evolve.evaluate import TeamPlayer
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.propose import EDITS, TaskTexts, edited_team, structure
from agent_system.evolve.replay import ReplayClient, ReplayMemory
from agent_system.evolve.search import AskModel, SearchInputs, TeamSearch
from agent_system.evolve.settings import EvolveSettings
from agent_system.rollout import AgentBinding, Collector, CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ALONE, ROLES
from verl.protocol.generate import GenerateRequest, SamplingParams

# The right letter of every task; no reply and no prompt has it.
MARKER = "F"
TASKS = [
    Task(f"t{i}", f"the very rare item number {i} code", "lookup", MARKER if i % 3 else "A",
         {"code": MARKER if i % 3 else "A", "asks": "code"})
    for i in range(96)
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


class World:
    """A search whose agents and proposer are scripted.

    Attributes:
        prompts: all that agents and the proposer were asked.
    """

    def __init__(self, folder: Path, tokenizer: Any, **settings: Any) -> None:
        self.prompts: list[str] = []
        self.questions: list[str] = []
        self.memory = ReplayMemory(folder / "replies.jsonl")
        self.folder = folder
        self.engine = ScriptedEngine(tokenizer, self._reply)
        self.tokenizer = tokenizer
        self.player = TeamPlayer(self.collector, TASKS, TASKS[:32], self.memory, "team_reward", 0)
        fields = {"tasks": 32, "confirm": 32, "generations": 3, "children": 2} | settings
        self.settings = EvolveSettings(**fields)

    def _reply(self, prompt: str, request: GenerateRequest) -> str:
        self.prompts.append(prompt)
        return "A" if request.seed % 2 else "C"

    def collector(self, team: Team) -> Collector:
        path = self.folder / f"{team.key()}.yaml"
        team.save(path)
        sampling = SamplingParams(8)
        bindings = {
            name: AgentBinding(
                name,
                name,
                name,
                ReplayClient(self.engine, "wg", self.memory),
                self.tokenizer,
                sampling,
                sampling,
                999,
            )
            for name in team.agents
        }
        return Collector.from_names(
            orchestra_type="graph",
            env_name="lookup",
            bindings=bindings,
            settings=CollectorSettings(max_failure_rate=1.0),
            orchestra_options={"file": str(path)},
        )

    def search(self, ask: AskModel | None = None) -> TeamSearch:
        start = Team.parse(ALONE)
        parts = Parts.of([start, Team.parse(ROLES)])
        tasks = TaskTexts.of([t.prompt for t in TASKS], [start])
        inputs = SearchInputs(self.settings, 0, [start], parts, self.player, 32, ask=ask, tasks=tasks)
        return TeamSearch(inputs, SearchLedger(self.folder, {}, self.memory))

    def proposer(self, replies: Callable[[int], str]) -> AskModel:
        """An asked model, whose reply follows from the number of questions before."""

        async def ask(text: str, seed: int) -> tuple[str, int]:
            self.questions.append(text)
            return replies(len(self.questions) - 1), 7

        return ask


def vote(n: int) -> str:
    return json.dumps([{"op": "vote", "at": "do[0]", "n": n}])


async def test_the_ground_truth_reaches_no_prompt_of_an_agent_or_a_proposer(
    tmp_path: Path, tokenizer: Any
) -> None:
    world = World(tmp_path, tokenizer)
    # a call that reads all before it, so that anything that agents see is in a prompt
    edits = [
        vote(3), '[{"op": "check", "at": "do[0]", "who": "Checker", "n": 2, "passes": "right"}]',
        '[{"op": "call", "at": "do[1]", "who": "Filer", "returns": true}]', vote(5), vote(2), vote(4),
    ]  # fmt: skip
    search = world.search(world.proposer(lambda number: edits[number % len(edits)]))
    await search.run()
    assert len(world.questions) >= 6 and len(world.prompts) > 100
    begin, end = "Episodes with a wrong answer:\n", "Earlier edits"
    told = [question.partition(begin)[2].partition(end)[0] for question in world.questions]
    assert all(text.count("Task: the very rare item") == 3 and "  Solver: " in text for text in told)
    shown = [*told, *world.prompts]
    assert all(f" {MARKER}" not in text and f"'{MARKER}'" not in text for text in shown)
    ledger = (tmp_path / "ledger.jsonl").read_text()
    assert "ground_truth" not in ledger
    assert any(c.edits for c in search.archive.candidates)


async def test_a_refused_reply_is_asked_for_once_more_with_the_reason(tmp_path: Path, tokenizer: Any) -> None:
    world = World(tmp_path, tokenizer)
    replies = [
        '[{"op": "vote", "at": "do[9]", "n": 3}]',
        vote(3),
        vote(2),
        vote(5),
        vote(4),
        vote(6),
        vote(7),
    ]
    search = world.search(world.proposer(lambda number: replies[min(number, 6)]))
    await search.run()
    assert world.questions[1].startswith(world.questions[0])
    assert "It is refused: there is no step at 'do[9]'" in world.questions[1]
    assert search.counts.proposals == 7 * len(world.questions)
    assert f"{search.counts.proposals:,} for proposals" in _report(search)
    line = next(
        json.loads(x) for x in (tmp_path / "ledger.jsonl").read_text().splitlines() if "proposal" in x
    )
    assert line["replies"] == replies[:2] and line["tokens"] == 14


def _report(search: TeamSearch) -> str:
    from agent_system.evolve.report import report

    return report(search, lambda mean, count, confidence: (mean, mean))


@pytest.mark.parametrize("reply", ["I do not know", vote(3)[:-1], "[" * 1000])
async def test_three_invalid_replies_in_a_row_end_a_generation(
    tmp_path: Path, tokenizer: Any, reply: str
) -> None:
    world = World(tmp_path, tokenizer)
    search = world.search(world.proposer(lambda number: reply))
    chosen = await search.run()
    assert len(world.questions) == 3 * 3 * 2, "three generations of three proposals, each asked for twice"
    assert chosen.parent is None and len(search.archive.candidates) == 1


async def test_the_same_file_again_is_no_new_file(tmp_path: Path, tokenizer: Any) -> None:
    world = World(tmp_path, tokenizer)
    search = world.search(world.proposer(lambda number: vote(3)))
    await search.run()
    keys = [c.key for c in search.archive.candidates]
    assert len(keys) == len(set(keys)) == 2 or "vote" in search.archive.candidates[-1].team.text()


def test_a_text_with_five_words_in_a_row_of_a_task_is_refused() -> None:
    start = Team.parse(ALONE)
    parts = Parts.of([start])
    tasks = TaskTexts.of([t.prompt for t in TASKS], [start])

    def reply(text: str) -> str:
        return json.dumps([{"op": "prompt", "at": "Solver", "text": text}])

    copies = (
        "If it is The very rare ITEM number... say A: {env_prompt}",
        "{env_prompt} very rare item number 7",
    )
    for copied in copies:
        with pytest.raises(EditRefused, match="repeats 5 words in a row of a task"):
            edited_team(reply(copied), start, parts, tasks)
    edited_team(reply("Say a code of the very rare kind: {env_prompt}"), start, parts, tasks)
    said_by_user = TaskTexts.of(["Code: {env_prompt} one two three"], [start])
    assert not [row for row in said_by_user.rows if row[:2] == ("code", "env_prompt") and len(row) == 2]


def test_a_task_of_fewer_words_is_compared_as_a_whole() -> None:
    start = Team.parse(ALONE)
    parts = Parts.of([start])
    tasks = TaskTexts.of(["item 17: code?", "  ...", "Code:", ""], [start])

    def reply(text: str) -> str:
        return json.dumps([{"op": "prompt", "at": "Solver", "text": text}])

    for text in ("For Item 17, code is F. {env_prompt}", "{env_prompt} (item 17 code)"):
        with pytest.raises(EditRefused, match="a text repeats all words of a task"):
            edited_team(reply(text), start, parts, tasks)
    for text in ("Code of item 17: {env_prompt}", "item 7: code {env_prompt}", "Code: code {env_prompt}"):
        edited_team(reply(text), start, parts, tasks)


def test_the_form_of_a_reply_is_a_json_schema_of_the_edits() -> None:
    form = json.loads(structure())
    assert form["type"] == "structural_tag"
    assert form["format"]["json_schema"] == EDITS.json_schema()
    assert all({"op", "at"} <= set(schema["required"]) for schema in EDITS.json_schema()["$defs"].values())
    ops = {schema["properties"]["op"]["const"] for schema in EDITS.json_schema()["$defs"].values()}
    assert ops == {
        "call", "insert", "drop", "who", "loop", "limit", "vote", "votes", "check", "branch", "see", "swap",
        "split", "merge", "tool", "memory", "prompt",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["plain {env_prompt}", 'Say "yes"\nor no: {env_prompt}', "a \\ b"])
def test_a_prompt_under_the_form_of_a_reply_may_have_line_ends_and_quotes(text: str) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [chr(code) for code in range(32, 127)]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[]))
    matcher = xgrammar.GrammarMatcher(
        compiler.compile_structural_tag(structure()), terminate_without_stop_token=True
    )
    reply = json.dumps([{"op": "prompt", "at": "Solver", "text": text}])
    assert matcher.accept_string(reply) and matcher.is_terminated()
    start = Team.parse(ALONE)
    parts = Parts.of([start])
    long = json.dumps([{"op": "prompt", "at": "Solver", "text": "a" * 8001}])
    with pytest.raises(EditRefused, match="at most 8000 characters"):
        edited_team(long, start, parts, TaskTexts())


async def test_episodes_are_paired_by_seeds_and_equal_calls_replayed(tmp_path: Path, tokenizer: Any) -> None:
    world = World(tmp_path, tokenizer)
    alone = Team.parse(ALONE)
    vote_of_3 = edited_team(vote(3), alone, Parts.of([alone]), TaskTexts())[1]
    batch = await world.player.play([alone, vote_of_3], 0, 16)
    assert (batch.calls, batch.engine_calls) == (16 * 4, 16 * 3), (
        "the first vote is the call of the Solver alone"
    )
    assert batch.engine_tokens == world.memory.tokens
    tokens = batch.episodes[0][0].tokens
    assert [e.critical_tokens for e in batch.episodes[1]] == [tokens] * 16, "votes do not read each other"
    assert [e.tokens for e in batch.episodes[1]] == [3 * tokens] * 16
    world.memory.commit()
    again = await world.player.play([alone], 0, 16)
    assert again.engine_calls == 0 and again.episodes == [batch.episodes[0]]
    kept = await world.player.play([vote_of_3], 0, 16)
    assert kept.engine_calls == 0
    assert kept.episodes == [batch.episodes[1]], "votes that are kept do not read each other"
    later = await world.player.play([alone], len(TASKS), 16)
    assert later.engine_calls == 16, "a second pass over the tasks has other seeds"


async def test_a_chain_of_replies_is_as_long_as_its_replies(tmp_path: Path, tokenizer: Any) -> None:
    world = World(tmp_path, tokenizer)
    alone = Team.parse(ALONE)
    text = '[{"op": "call", "at": "do[1]", "who": "Solver"}, {"op": "call", "at": "do[1]", "who": "Solver"}]'
    chain = edited_team(text, alone, Parts.of([alone]), TaskTexts())[1]
    (episodes,) = (await world.player.play([chain], 0, 4)).episodes
    assert all(e.critical_tokens == e.tokens for e in episodes)


async def test_a_score_that_episodes_have_not_is_named(tmp_path: Path, tokenizer: Any) -> None:
    world = World(tmp_path, tokenizer)
    world.player.score = "acc"
    with pytest.raises(
        Exception, match=r"evolve\.score=acc: episodes have no such number; numbers: team_reward, "
    ):
        await world.player.play([Team.parse(ALONE)], 0, 4)
