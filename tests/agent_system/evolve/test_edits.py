"""Edits: each does what it says, or is refused with a reason; no invalid team exists."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agent_system.evolve.edits import (
    EDITS,
    EditRefused,
    Parts,
    apply_all,
    dump,
    normal,
    path_of,
    read_edits,
    result_of,
)
from agent_system.evolve.propose import draw_team
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import hand_written, roles_team
from tests.cpu_time import cpu_seconds

PAIR = """\
team: 1
agents:
  Solver: {prompt: "First read. Then solve: {env_prompt}", answer: boxed}
  Judge: {prompt: "Check: {env_prompt}{team_context}", answer: {verdict: verify}}
do:
  - {call: Solver}
  - {call: Judge, id: v}
return: {of: [v]}
"""


def edited(team: Team, parts: Parts, **fields: Any) -> dict[str, Any]:
    """The value of a team after one edit."""
    return normal(apply_all(read_edits(json.dumps([fields])), team, parts).source.value)


@pytest.mark.parametrize(
    ("fields", "do", "of"),
    [
        (
            {"op": "call", "at": "do[1]", "who": "Filer", "sees": ["code"], "returns": True},
            [{"call": "Solver", "id": "code"}, {"call": "Filer", "id": "s1", "sees": ["code"]}],
            ["s1", "code"],
        ),
        (
            {"op": "loop", "at": "do[0]", "n": 2},
            [{"loop": 2, "do": [{"call": "Solver", "id": "code"}]}],
            ["code"],
        ),
        ({"op": "vote", "at": "do[0]", "n": 3}, [{"vote": "Solver", "n": 3, "id": "code"}], ["code"]),
        (
            {"op": "check", "at": "do[0]", "who": "Checker", "n": 3, "passes": "right"},
            [
                {
                    "loop": 3,
                    "do": [
                        {"call": "Solver", "id": "code"},
                        {"call": "Checker", "id": "v1", "sees": ["code"], "unless": {"loop": "last"}},
                        {"stop": {"of": "v1", "is": "right"}},
                    ],
                }
            ],
            ["code"],
        ),
        ({"op": "who", "at": "do[0]", "who": "Filer"}, [{"call": "Filer", "id": "code"}], ["code"]),
        (
            {
                "op": "insert",
                "at": "do[1]",
                "step": {
                    "if": {"observation": "asks", "is": "shelf"},
                    "do": [{"call": "Filer", "sees": ["gone"]}],
                },
                "returns": True,
            },
            [
                {"call": "Solver", "id": "code"},
                {
                    "if": {"observation": "asks", "is": "shelf"},
                    "do": [{"call": "Filer", "sees": ["code"], "id": "s1"}],
                },
            ],
            ["s1", "code"],
        ),
        (
            {"op": "swap", "at": "do[0]", "step": {"vote": "Solver", "n": 2, "id": "code"}},
            [{"vote": "Solver", "n": 2, "id": "code"}],
            ["code"],
        ),
    ],
    ids=lambda x: x["op"] if isinstance(x, dict) else "",
)
def test_an_edit_of_the_solver_alone(
    start: Team, parts: Parts, fields: dict[str, Any], do: list[Any], of: list[str]
) -> None:
    value = edited(start, parts, **fields)
    assert (value["do"], value["return"]["of"]) == (do, of)


def test_edits_of_a_checked_team(parts: Parts) -> None:
    team = hand_written(3, 1)
    assert edited(team, parts, op="limit", at="do[0]", n=5)["do"][0]["loop"] == 5
    once = edited(team, parts, op="limit", at="do[0]", n=1)
    assert once["do"][0] == {"call": "Solver", "id": "code"} and "Checker" not in once["agents"]
    unchecked = edited(team, parts, op="drop", at="do[0].do[1]")
    assert unchecked["do"][0] == {"loop": 3, "do": [{"call": "Solver", "id": "code"}]}
    assert list(unchecked["agents"]) == ["Solver", "Filer"]
    unfiled = edited(team, parts, op="drop", at="do[1]")
    assert unfiled["return"]["of"] == ["code"]
    branched = edited(team, parts, op="branch", at="do[0].do[1]", condition={"loop": "first"})
    assert branched["do"][0]["do"][1]["if"] == {"loop": "first"}
    votes = edited(hand_written(1, 5), parts, op="votes", at="do[0]", n=1)
    assert votes["do"][0] == {"call": "Solver", "id": "code"}
    merged = edited(team, parts, op="merge", at="Filer", into="Solver")
    assert list(merged["agents"]) == ["Solver", "Checker"]
    twice = apply_all(read_edits('[{"op": "call", "at": "do[0]", "who": "Solver"}]'), team, parts)
    split = edited(twice, parts, op="split", at="do[0]", name="Solver 2", prompt="Think. {env_prompt}")
    assert split["do"][0]["call"] == "Solver 2"
    assert split["agents"]["Solver 2"] == {"like": "Solver", "as": "Solver", "prompt": "Think. {env_prompt}"}
    assert "no step calls it" in refused(
        hand_written(1, 1), parts, op="split", at="do[0]", name="X", prompt="Think. {env_prompt}"
    )


def test_the_result_of_a_checked_step_is_what_was_checked(start: Team, parts: Parts) -> None:
    team = hand_written(3, 1)
    loop = normal(team.source.value)["do"][0]
    assert edited(start, parts, op="swap", at="do[0]", step=loop)["return"]["of"] == ["code"]
    value = edited(start, parts, op="insert", at="do[1]", step=loop, returns=True)
    assert value["return"]["of"] == [value["do"][1]["do"][0]["id"], "code"]
    again = edited(team, parts, op="check", at="do[0]", who="Checker", n=2, passes="right")
    assert again["do"][0]["do"][1]["sees"] == ["code"]
    # the only reply of a step is its result, whatever reads it
    assert (
        result_of({"do": [{"call": "Solver", "id": "a"}, {"stop": {"of": "a", "is": "A"}}], "loop": 2}) == "a"
    )


def test_edits_of_agents(parts: Parts) -> None:
    team = Team.parse(PAIR)
    assert edited(team, parts, op="prompt", at="Solver", text="{env_prompt}")["agents"]["Solver"][
        "prompt"
    ] == ("{env_prompt}")
    seen = edited(team, parts, op="see", at="do[1]", sees=[])
    assert seen["do"][1] == {"call": "Judge", "id": "v", "sees": []}
    with_tool = edited(team, parts, op="tool", at="Solver", tool="calculator")
    assert with_tool["agents"]["Solver"]["tools"] == ["calculator"]
    assert edited(team, parts, op="memory", at="team", memory="none")["memory"] == "none"
    assert (
        edited(team, parts, op="memory", at="Judge", memory="simple")["agents"]["Judge"]["memory"] == "simple"
    )


def refused(team: Team, parts: Parts, **fields: Any) -> str:
    with pytest.raises(EditRefused) as caught:
        edited(team, parts, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"op": "who", "at": "do[0]", "who": "Solvr"}, "no agent 'Solvr'; did you mean 'Solver'?"),
        ({"op": "who", "at": "do[7]", "who": "Solver"}, "there is no step at 'do[7]'"),
        ({"op": "who", "at": "do[0].x y", "who": "Solver"}, "is no place of a step"),
        ({"op": "drop", "at": "do[0]"}, "it is the only step there"),
        ({"op": "limit", "at": "do[0]", "n": 2}, "the step at do[0] is no loop"),
        ({"op": "who", "at": "do[0]", "who": "Solver"}, "it changes nothing"),
        ({"op": "loop", "at": "do[0]", "n": 50}, "more than max_calls=32"),
        ({"op": "see", "at": "do[0]", "sees": ["nobody"]}, "no step 'nobody'"),
        ({"op": "see", "at": "do[0]", "sees": []}, "it changes nothing"),
        ({"op": "prompt", "at": "Solver", "text": "{env_prompt.__class__}"}, "is no plain name"),
        ({"op": "tool", "at": "Solver", "tool": "os.system"}, "no tool 'os.system'"),
        ({"op": "swap", "at": "do[0]", "step": {"call": "Solver", "x": 1}}, "no such field"),
        ({"op": "swap", "at": "do[0]", "step": {"call": "Elsewhere"}}, "no agent 'Elsewhere'"),
        ({"op": "branch", "at": "do[0]", "condition": {"of": "code"}}, "a comparison"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_with_the_reason(
    start: Team, parts: Parts, fields: dict[str, Any], said: str
) -> None:
    assert said in refused(start, parts, **fields)


@pytest.mark.parametrize(
    "text",
    ["", "no list", "[]", "[1]", '[{"op": "exec", "at": "x"}]', '[{"op": "drop"}]', "[" * 50_000,
     "[" + "9" * 70_000,
     '[{"op": "drop", "at": "do[0]", "code": "x"}]', '[{"op": "loop", "at": "do[0]", "n": true}]',
     '[{"op": "loop", "at": "do[0]", "n": 1e999}]', json.dumps([{"op": "drop", "at": "do[0]"}] * 4)],
)  # fmt: skip
def test_a_reply_that_is_no_list_of_edits_is_refused_at_once(text: str) -> None:
    before = cpu_seconds()
    with pytest.raises(EditRefused):
        read_edits(text)
    assert cpu_seconds() - before < 1


@pytest.mark.parametrize(
    "step",
    [{}, {"call": 7}, {"loop": 2, "do": 5}, {"loop": 2, "do": ["x"]}, {"vote": [1, {}]}, {"parallel": 3},
     {"stop": {"of": {"a": 1}, "is": 1}}, {"if": {"of": []}, "do": [{"call": "Solver"}]},
     {"call": "Solver", "sees": 4}, {"call": "Solver", "id": ["a"]}, {"call": "Solver", "id": "no name!"},
     {"loop": 10**9, "do": [{"call": "Solver"}]}],
)  # fmt: skip
@pytest.mark.parametrize("op", ["swap", "insert"])
def test_what_is_no_step_is_refused(start: Team, parts: Parts, op: str, step: dict[str, Any]) -> None:
    assert refused(start, parts, op=op, at="do[0]", step=step)


def test_edits_are_read_from_the_text_around_them_and_written_as_they_were(start: Team, parts: Parts) -> None:
    edits = read_edits('I would say:\n```json\n[{"op": "vote", "at": "do[0]", "n": 3}]\n```')
    again = EDITS.validate_python(dump(edits))
    assert apply_all(again, start, parts).key() == apply_all(edits, start, parts).key()


VOTE = '[{"op": "vote", "at": "do[0]", "n": 3}]'


@pytest.mark.parametrize(
    "text",
    [f"I looked at episode [2]. {VOTE}", f"{VOTE} as in [2], [a]",
     f'[{{"op": "drop", "at": "do[0]"}}] or {VOTE}', f"[{{ no list ] {VOTE}",
     "[2] " + VOTE.replace("[{", "[\n {")],
)  # fmt: skip
def test_the_last_list_of_a_reply_is_read(text: str) -> None:
    assert read_edits(text) == read_edits(VOTE)


def test_lists_inside_an_edit_are_no_lists_of_edits() -> None:
    step = {"loop": 2, "do": [{"call": "Solver"}]}
    (edit,) = read_edits(f"[1] {json.dumps([{'op': 'insert', 'at': 'do[0]', 'step': step}])}")
    assert dump([edit])[0]["step"] == step


@pytest.mark.parametrize("text", ['[{"a":' * 10_000, "[{" * 32_000, '[{"a":1},' * 7_000])
def test_many_lists_that_do_not_end_take_no_time(text: str) -> None:
    before = cpu_seconds()
    with pytest.raises(EditRefused):
        read_edits(text)
    assert cpu_seconds() - before < 1


def test_a_new_agent_has_no_name_of_an_agent_of_the_run(start: Team) -> None:
    parts = Parts.of([start], run_agents=["Solver", "Proposer"])
    team = apply_all(read_edits('[{"op": "call", "at": "do[0]", "who": "Solver"}]'), start, parts)
    split = {"op": "split", "at": "do[0]", "prompt": "Think. {env_prompt}"}
    assert refused(team, parts, **split, name="Proposer") == "there is an agent 'Proposer'"
    assert "Solver 2" in edited(team, parts, **split, name="Solver 2")["agents"]


def test_names_of_steps_and_the_form_of_the_text_make_no_other_team(start: Team, parts: Parts) -> None:
    renamed = Team.parse(start.text().replace("code", "answer"))
    vote = {"op": "vote", "at": "do[0]", "n": 3}
    (first, second) = (apply_all(read_edits(json.dumps([vote])), t, parts).key() for t in (start, renamed))
    assert first == second


def test_every_random_edit_leads_to_a_team_that_its_own_text_gives_again(start: Team, parts: Parts) -> None:
    teams = [start, roles_team(), hand_written(3, 3), Team.parse(PAIR)]
    seen = set()
    for seed in range(300):
        rng = random.Random(seed)
        team = rng.choice(teams)
        drawn = draw_team(team, parts, teams, rng, votes=True)
        assert drawn is not None
        edits, changed = drawn
        assert changed.calls <= parts.max_calls and changed.key() != team.key()
        assert Team.parse(changed.text()).key() == changed.key()
        assert apply_all(EDITS.validate_python(dump(edits)), team, parts).key() == changed.key()
        seen.update(str(e.op) for e in edits)
    assert len(seen) >= 14


def test_the_same_seed_draws_the_same_edits(start: Team, parts: Parts) -> None:
    def draw() -> list[Any]:
        return [
            dump(drawn[0])
            for seed in range(30)
            if (drawn := draw_team(start, parts, [], random.Random(seed), votes=True))
        ]

    assert draw() == draw()


def test_a_random_check_is_not_of_a_verdict(parts: Parts) -> None:
    team = hand_written(3, 1)
    checked = set()
    for seed in range(100):
        drawn = draw_team(team, parts, [], random.Random(seed), votes=True)
        assert drawn is not None
        checked |= {edit["at"] for edit in dump(drawn[0])[:1] if edit["op"] == "check"}
    assert "do[0].do[0]" in checked and "do[0].do[1]" not in checked


def test_places() -> None:
    assert path_of("do[0].else[1].parallel[0][2]") == ("do", 0, "else", 1, "parallel", 0, 2)
    for text in ("do[0", "do..[x]", "do[-1]", "do[0]; rm"):
        with pytest.raises(EditRefused):
            path_of(text)
