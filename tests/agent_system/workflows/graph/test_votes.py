"""A judge chooses among what it reads, later calls read its reply, and a vote has the fields that all its
candidates have.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_system import Projection, Task
from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import Team
from tests.agent_system.workflows.graph.conftest import AGENTS, Play, elect
from tests.agent_system.workflows.graph.test_play import agents_of, play, read, team

TASK = Task("t", "What?", "demo", "7")
JUDGES = AGENTS + "  J: {prompt: 'J: {env_prompt}{team_context}'}\n"


async def played(make_team: Play, steps: str, judge: str = "1", **more: Any) -> tuple[list[str], Any]:
    """What each call of the judge J read, and the answer; the others say their names and a number."""
    text = team(steps, agents="".join(line for line in JUDGES.splitlines(True) if f" {line[2]}" in steps))
    replies = agents_of(text) | ({"J": lambda *_: judge} if "J" in text else {})
    (episode,) = (await make_team(text, {**replies, **more}).collect([TASK], 1, step=0)).episodes
    assert not episode.failure
    prompts = [s.request.messages[0]["content"] for s in episode.samples if s.agent_id == "J"]
    return [" ".join(p.split("What?", 1)[1].split()) for p in prompts], episode.answer


@pytest.mark.parametrize(
    ("steps", "reads", "answer"),
    [
        ("- {loop: 2, do: [{vote: A, n: 2, sees: [], best: J, id: s}]}", ["A: A0 A: A1", "A: A2 A: A3"],
            "A2"),
        ("- {call: A, id: a}\n- {call: B, id: b}\n- {vote: [b, a], best: J, id: s}", ["B: B0 A: A0"], "B0"),
        ("- {call: C}\n- {call: A, id: a}\n- {call: C}\n- {call: B, id: b}\n- {vote: [a, b], best: J, id: s}",
            ["A: A0 B: B0"], "A0"),
        ("- {call: A, id: a}\n- {call: B, id: b, unless: {of: a, field: valid}}\n- {call: C, id: c}\n"
            "- {vote: [b, c, a], best: J, id: s}", ["C: C0 A: A0"], "C0"),
        ("- {loop: 2, do: [{call: A, id: a}, {call: B, id: b}, {vote: [b, a], best: J, id: s}]}",
            ["B: B0 A: A0", "B: B1 A: A1"], "B1"),
        ("- {loop: 2, do: [{call: A, id: a}, {call: B, id: b, unless: {loop: last}}, {vote: [b, a], best: "
            "J, id: s}]}",
            ["B: B0 A: A0", "B: B0 A: A1"], "B0"),
        ("- {vote: A, n: 2, id: v}\n- {call: B, id: b}\n- {vote: [b, v], best: J, id: s}", ["B: B0 A: A0"],
            "B0"),
        ("- {call: A, id: a}\n- {call: B, id: b}\n- {vote: [b, a], id: v}\n- {call: C, id: c}\n"
            "- {vote: [c, v], best: J, id: s}", ["C: C0 B: B0"], "C0"),
        ("- {parallel: [{vote: A, n: 2, best: J, id: v}, [{call: B}, {call: B, id: b}]]}\n"
            "- {vote: [b, v], best: J, id: s}", ["A: A0 A: A1", "B: B1 A: A0"], "B1"),
        ("- if: {observation: no}\n  do: [{call: A, id: a}]\n  else: [{call: B, id: a}]\n- {call: C, id: c}\n"
            "- {vote: [c, a], best: J, id: s}", ["C: C0 B: B0"], "C0"),
        ("- {call: A, id: a}\n- {loop: 3, do: [{call: B, id: b}, {vote: [s, b], best: J, id: s}]}",
            ["B: B0", "B: B0 B: B1", "B: B0 B: B2"], "B0"),
        ("- loop: 2\n  do:\n  - if: {loop: first}\n    do: [{vote: A, n: 2, id: v}]\n    else: [{call: B, "
            "id: v}]\n"
            "  - {call: C, id: c}\n  - {vote: [v, c], best: J, id: s}", ["A: A0 C: C0", "B: B0 C: C1"], "B0"),
        ("- {call: A, id: a}\n- {spawn: {of: a, agent: B}, id: p}\n- {vote: [p, a], best: J, id: s}",
            ["B: B0 A: A0"], "B0"),
    ],
)  # fmt: skip
async def test_a_judge_reads_the_candidates_in_their_order(
    make_team: Play, steps: str, reads: list[str], answer: str
) -> None:
    assert await played(make_team, steps) == (reads, answer)


@pytest.mark.parametrize(
    ("candidates", "choice", "place"),
    [
        ("5 5 2", "2", 2), ("3 1", "1", 1), ("3 1 7", "3", 0), ("3 1 7", "2", 1), ("1 2 3", "2", 1),
        ("2 1", "1", 1),
        ("x7 7", "7", 1), ("x7 x7", "7", 0), ("x7 8", "1", 0), ("7 8", "3", 0), ("7 8", "x8", 0),
        ("8 7 7", "", 1),
        ("a b", "b", 1), ("xa b a", "a", 2),
    ],
)  # fmt: skip
def test_a_judge_names_an_action_rather_than_a_number_and_a_valid_candidate(
    candidates: str, choice: str, place: int
) -> None:
    """An `x` in front makes a reply invalid."""
    replies = [
        Projection(word.removeprefix("x"), not word.startswith("x"), {"n": i})
        for i, word in enumerate(candidates.split())
    ]
    chosen = elect(replies, Projection(choice.removeprefix("x"), not choice.startswith("x")))
    assert chosen.fields["n"] == place


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
async def test_later_calls_read_the_reply_of_a_judge(make_team: Play, parallel: bool, inner: bool) -> None:
    vote = "{vote: A, n: 2, best: B, id: v}"
    last = "{call: C, id: s}"
    if inner:  # in the branches of a parallel
        steps = f"- {{parallel: [[{vote}, {last}], {{call: A}}]}}"
    else:
        steps = f"- {vote}\n- {f'{{parallel: [{last}, {{call: A}}]}}' if parallel else last}"
    result = await play(make_team, team(steps))
    assert read(result)["C0"] == "A: A0 A: A1 B: B0"


async def test_a_judge_in_another_branch_is_not_read(make_team: Play) -> None:
    steps = "- {parallel: [{vote: A, n: 2, best: B, id: v}, [{call: C}, {call: C}, {call: C, id: s}]]}"
    result = await play(make_team, team(steps))
    assert read(result)["C2"] == "C: C0 C: C1"


async def test_branches_inside_branches_read_none_of_the_branches_around(make_team: Play) -> None:
    steps = (
        "- {parallel: [[{call: A}, {call: A}], [{call: B}, {parallel: [[{call: C}, {call: C, id: s}], "
        "{call: B}]}]]}\n"
    )
    result = await play(make_team, team(steps))
    assert read(result)["C1"] == "B: B0 C: C0"


async def test_sees_of_a_vote_are_its_candidates_and_its_judge(make_team: Play) -> None:
    steps = "- {call: C}\n- {vote: A, n: 2, best: B, id: v}\n- {call: C, sees: [v]}"
    result = await play(make_team, team(steps, "v"))
    assert read(result)["C1"] == "A: A0 A: A1 B: B0"
    steps = (
        "- {call: A, id: a}\n- {call: B, id: b}\n- {call: C}\n- {vote: [a, b], id: v}\n- {call: C, sees: [v]}"
    )
    result = await play(make_team, team(steps, "v"))
    assert read(result)["C1"] == "A: A0 B: B0"


KINDS = "  A: {prompt: x}\n  V: {prompt: x, answer: {verdict: v}}\n  W: {prompt: x, answer: {code: []}}\n"
KINDS += "  K: {class: math/Verifier Agent}\n"
THREE = (
    "- {call: A, id: a}\n- {call: V, id: v}\n- {call: W, id: w}\n- {call: K, id: k}\n- {call: V, id: v2}\n"
)
THREE += "- {spawn: {of: a, agent: A}, id: p}\n"


@pytest.mark.parametrize(
    ("source", "field", "fields"),
    [
        ("{vote: [v, v2], id: s}", "aproved", "action, valid, approved, parsed, votes, share"),
        ("{vote: [v, v2], id: s}", "approved", None), ("{vote: [v, v2], id: s}", "votes", None),
        ("{vote: [a, v], id: s}", "approved", "action, valid, votes, share"),
        ("{vote: [k, v], id: s}", "approved", None), ("{vote: [k, k2], id: s}", "anything", None),
        ("{vote: [k, v], id: s}", "anything", "action, valid, approved, parsed, votes, share"),
        ("{vote: [p, a], id: s}", "children", "action, valid, votes, share"),
        ("{vote: [p, p2], id: s}", "children", None),
        ("{vote: [u, v], id: s}", "approved", None), ("{vote: [u, v], id: s}", "language", "votes, share"),
        ("{if: {of: a, is: x}, do: [{call: V, id: s}], else: [{call: A, id: s}]}", "approved",
            "action, valid"),
        ("{if: {of: a, is: x}, do: [{call: V, id: s}], else: [{call: V, id: s}]}", "approved", None),
        ("{if: {of: a, is: x}, do: [{call: V, id: s}], else: [{call: V, id: s}]}", "aproved",
            "approved, parsed"),
        ("{if: {of: a, is: x}, do: [{call: W, id: s}], else: [{call: V, id: s}]}", "language",
            "action, valid"),
        ("{if: {of: a, is: x}, do: [{call: K, id: s}], else: [{call: V, id: s}]}", "language",
            "approved, parsed"),
        ("{loop: 2, do: [{call: V, id: t}, {vote: [s, t], id: s}]}", "approved", None),
        ("{loop: 2, do: [{call: V, id: t}, {vote: [s, t], id: s}]}", "aproved",
            "approved, parsed, votes, share"),
    ],
)  # fmt: skip
def test_a_field_that_a_result_may_lack_is_refused(source: str, field: str, fields: str | None) -> None:
    more = "- {call: K, id: k2}\n- {spawn: {of: a, agent: A}, id: p2}\n- {vote: [v, v2], id: u}\n"
    text = team(f"{THREE}{more}- {source}\n- {{call: A, unless: {{of: s, field: {field}}}}}", "a", KINDS)
    if fields is None:
        Team.parse(text)
        return
    with pytest.raises(AgentSystemError) as error:
        Team.parse(text)
    said = str(error.value)
    assert f"unless.field: the step 's' has no field '{field}'" in said and said.endswith(fields)
