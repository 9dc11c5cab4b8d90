"""`Team.key` is equal for teams that make the same calls, and different where a call is."""

from __future__ import annotations

import itertools
import re

import pytest

from agent_system.workflows.graph import Team

QUOTE = 'quote: {entry: "{text}"}'
AGENTS = {
    "A": f"prompt: 'a {{team_context}}', {QUOTE}",
    "B": f"prompt: 'b {{team_context}}', {QUOTE}",
    "C": f"prompt: 'c', answer: {{verdict: {{tag: v, approve: [ok, yes], reject: [bad]}}}}, {QUOTE}",
    "D": f"prompt: 'd', answer: {{choice: [left, right]}}, {QUOTE}",
    "E": f"prompt: 'e', answer: {{code: [sql, c]}}, {QUOTE}, tools: [calculator, {{delegate: F}}], "
    f"variables: [x, y]",
    "F": f"prompt: 'f {{task}}', {QUOTE}",
}
STEPS = """\
- {call: A, id: a}
- {call: B, id: b, sees: [a]}
- {vote: C, n: 3, id: c, best: D}
- {call: D, id: d, unless: {of: c, field: votes, above: 2}}
- {loop: 2, do: [{call: E, id: e, sees: [a, b]}, {stop: {of: d, is: left}}]}
- {if: {of: b, in: [x, y]}, do: [{call: A, id: f}], else: [{spawn: {of: a, agent: F}, id: f}]}
- {vote: [a, b], id: v}
- {parallel: [{call: A, id: g}, {stop: {loop: last}}]}
"""
STEPS = STEPS.replace("{stop: {loop: last}}", "{loop: 2, do: [{call: B}, {stop: {loop: first}}]}")
RETURN = "[v, g]"
TEAM = (STEPS, RETURN, "", AGENTS)


def key(steps: str = STEPS, returned: str = RETURN, more: str = "", agents: dict[str, str] = AGENTS) -> str:
    lines = "".join(f"  {name}: {{{fields}}}\n" for name, fields in agents.items())
    return Team.parse(f"team: 1\n{more}agents:\n{lines}do:\n{steps}return: {returned}\n").key()


def changed(old: str, new: str) -> tuple[str, str, str, dict[str, str]]:
    """The team with another text in its steps and agents."""
    agents = {name: fields.replace(old, new) for name, fields in AGENTS.items()}
    team = (STEPS.replace(old, new), RETURN.replace(old, new), "", agents)
    assert team != TEAM
    return team


RENAMED = {name: f"step{number}" for number, name in enumerate("fedcbagv")}
SAME = {
    "sees: null": changed("id: a}", "id: a, sees: null}"),
    "sees: null of a vote": changed("best: D}", "best: D, sees: null}"),
    "sees: null of a spawn": changed("agent: F}", "agent: F}, sees: null"),
    "unless: null": changed("id: a}", "id: a, unless: null}"),
    "id: null": changed("{call: B}", "{call: B, id: null}"),
    "best: null": changed("[a, b], id", "[a, b], best: null, id"),
    "order of sees": changed("sees: [a, b]", "sees: [b, a]"),
    "return with a default of null": (STEPS, "{of: [v, g], default: null}", "", AGENTS),
    "a default that is never used": (STEPS, "{of: [v, g], default: x}", "", AGENTS),
    "a returned step that always runs": (STEPS, "v", "", AGENTS),
    "the returned steps as a mapping": (STEPS, "{of: [v, g]}", "", AGENTS),
    "field: action": changed("{of: d, is", "{of: d, field: action, is"),
    "white space of a text": changed("is: left", "is: ' left '"),
    "is as in": changed("is: left", "in: [left]"),
    "order of in": changed("in: [x, y]", "in: [y, x, x]"),
    "a number as a float": changed("above: 2", "above: 2.0"),
    "no else": changed("[{call: B}, {stop", "[{call: B, unless: null}, {stop"),
    "an id that nobody refers to": changed("{call: B}", "{call: B, id: nobody}"),
    "names of steps": (
        re.sub(r"(?<=id: )\w|(?<=of: )[a-g]|(?<=\[)[ab](?=[],])|(?<=, )[ab](?=\])", lambda m: RENAMED[m[0]],
            STEPS),
        re.sub(r"\w", lambda m: RENAMED[m[0]], RETURN), "", AGENTS,
    ),
    "memory": (STEPS, RETURN, "memory: simple\n", AGENTS),
    "no memory": (STEPS, RETURN, "memory: null\n", AGENTS),
    "max and depth": changed("agent: F}", "agent: F, max: 4, depth: 1}"),
    "delegate's max and depth": changed("delegate: F}", "delegate: F, depth: 1, max: 4}"),
    "answer: text": changed("prompt: 'a", "answer: text, prompt: 'a"),
    "fallback": changed("tag: v,", "tag: v, fallback: reject,"),
    "order of verdicts": changed("[ok, yes]", "['Yes!', ' OK.', ok]"),
    "order of choices": changed("[left, right]", "[right, left]"),
    "order of languages": changed("[sql, c]", "[C, SQL]"),
    "order of variables": changed("variables: [x, y]", "variables: [y, x]"),
    "the quote's defaults": changed('"{text}"', '"{text}", separator: "", empty: "", last: null'),
    "own name for the environment": changed("prompt: 'a", "as: A, prompt: 'a"),
    "own memory of none": changed("prompt: 'a", "memory: none, prompt: 'a"),
    "sees of a prompt that shows no reply": changed("id: d, unless", "id: d, sees: [a], unless"),
    "sees of votes whose prompts show no reply": changed("best: D", "best: D, sees: []"),
    "sees of children whose prompts show no reply": changed("agent: F}", "agent: F}, sees: [a]"),
    "rounds": changed("variables", "max_rounds: 4, variables"),
    "rounds without tools": changed("prompt: 'a", "max_rounds: 7, prompt: 'a"),
    "no system": changed("prompt: 'a",
        "system: null, like: null, class: null, options: {}, tools: [], prompt: 'a"),
    "like": (STEPS, RETURN, "", AGENTS | {"B": "like: A, prompt: 'b {team_context}'"}),
    "like of like": (STEPS, RETURN, "", AGENTS | {"B": "like: A, prompt: 'b {team_context}'",
        "D": "like: B, prompt: d, answer: {choice: [left, right]}"}),
    "order of agents": (STEPS, RETURN, "", dict(reversed(AGENTS.items()))),
}  # fmt: skip
OTHER = {
    "sees: []": changed("id: a}", "id: a, sees: []}"),
    "sees": changed("sees: [a, b]", "sees: [a]"),
    "sees of all": changed(", sees: [a, b]", ""),
    "sees of a system message": changed("prompt: 'd'", "prompt: 'd', system: '{team_context}'"),
    "unless": changed("id: a}", "id: a, unless: {observation: x}}"),
    "a default": (STEPS.replace("- {vote: [a, b], id: v}\n", ""), "{of: [d], default: x}", "", AGENTS),
    "another default": (STEPS.replace("- {vote: [a, b], id: v}\n", ""), "{of: [d], default: y}", "", AGENTS),
    "return": (STEPS, "g", "", AGENTS),
    "another step first": (STEPS, "[d, v]", "", AGENTS),
    "order of a vote": changed("[a, b], id: v", "[b, a], id: v"),
    "best": changed(", best: D", ""),
    "another judge": changed("best: D", "best: B"),
    "n": changed("n: 3", "n: 4"),
    "loop": changed("loop: 2, do: [{call: E", "loop: 3, do: [{call: E"),
    "a field": changed("field: votes", "field: share"),
    "below": changed("above: 2", "below: 2"),
    "a number": changed("above: 2", "above: 3"),
    "a text for a number": changed("is: left", "is: '7'"),
    "a number for a text": changed("is: left", "is: 7"),
    "a text": changed("is: left", "is: right"),
    "a condition": changed("{loop: first}", "{loop: last}"),
    "a step of a condition": changed("{of: b, in", "{of: a, in"),
    "what is spawned of": changed("{of: a, agent", "{of: b, agent"),
    "max": changed("agent: F}", "agent: F, max: 5}"),
    "depth": changed("agent: F}", "agent: F, depth: 2}"),
    "order of steps": changed("- {vote: C, n: 3, id: c, best: D}\n",
        "- {vote: [a, b], id: w}\n- {vote: C, n: 3, id: c, best: D}\n"),
    "a call less": changed("[{call: B}, {stop", "[{call: B}, {call: B}, {stop"),
    "memory": (STEPS, RETURN, "memory: search\n", AGENTS),
    "no memory": (STEPS, RETURN, "memory: none\n", AGENTS),
    "a prompt": changed("prompt: 'a", "prompt: 'aa"),
    "a system message": changed("prompt: 'a", "system: s, prompt: 'a"),
    "an answer": changed("prompt: 'a", "answer: boxed, prompt: 'a"),
    "verdicts": changed("reject: [bad]", "reject: [bad, no]"),
    "verdicts the other way": changed("approve: [ok, yes], reject: [bad]",
        "approve: [bad], reject: [ok, yes]"),
    "fallback": changed("tag: v,", "tag: v, fallback: approve,"),
    "a tag": changed("tag: v,", "tag: w,"),
    "choices": changed("[left, right]", "[Left, right]"),
    "languages": changed("[sql, c]", "[sql]"),
    "the quote": changed('"{text}"', '"{text}", last: 1'),
    "no quote, which shows names": (STEPS, RETURN, "", AGENTS | {"A": "prompt: 'a {team_context}'"}),
    "an own memory": changed("prompt: 'a", "memory: simple, prompt: 'a"),
    "a name for the environment": changed("prompt: 'a", "as: B, prompt: 'a"),
    "order of tools": changed("[calculator, {delegate: F}]", "[{delegate: F}, calculator]"),
    "a tool": changed("[calculator, {delegate: F}]", "[python, {delegate: F}]"),
    "rounds": changed("variables", "max_rounds: 5, variables"),
    "which agent is called": changed("[{call: B}, {stop", "[{call: A}, {stop"),
    "which agent delegates": changed("delegate: F", "delegate: A"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_forms_of_one_team_have_one_key(case: str) -> None:
    assert repr(SAME[case]) != repr(TEAM)
    assert key(*SAME[case]) == key(*TEAM)


def test_teams_that_make_other_calls_have_other_keys() -> None:
    keys = {"the team": key(*TEAM), **{name: key(*team) for name, team in OTHER.items()}}
    equal = [pair for pair in itertools.combinations(keys, 2) if keys[pair[0]] == keys[pair[1]]]
    assert not equal


@pytest.mark.parametrize(
    "fields",
    ["prompt: 'd {team_context}'", "prompt: d, system: 'd {team_context}'", "class: math/Solver Agent",
     "like: A", "prompt: d, tools: [{delegate: A}]"],
)  # fmt: skip
def test_sees_counts_where_a_prompt_shows_earlier_replies(fields: str) -> None:
    agents = AGENTS | {"D": fields if "class" in fields else f"{fields}, {QUOTE}"}
    steps = "- {call: A, id: a}\n- {call: D, id: d}\n"
    narrow = steps.replace("id: d", "id: d, sees: []")
    agents = {name: agents[name] for name in ("A", "D")}
    assert key(steps, "d", "", agents) != key(narrow, "d", "", agents)


SHOWN = {
    "the agent": 'quote: {entry: "{agent}: {text}"}',
    "its first word": 'quote: {entry: "{role}: {text}"}',
    "the quote of agents without one": "answer: text",
    "a class": "class: math/Solver Agent",
    "a tool that names an agent": 'tools: [{delegate: Other}], quote: {entry: "{text}"}',
}


@pytest.mark.parametrize("way", [*SHOWN, None])
def test_names_of_agents_count_where_a_prompt_shows_them(way: str | None) -> None:
    fields = SHOWN.get(way or "", QUOTE) + ("" if way == "a class" else ", prompt: x")
    text = (
        f"team: 1\nagents:\n  First: {{as: N, {fields}}}\n  Other: {{as: M, prompt: y, {QUOTE}}}\n"
        "do:\n- {call: First, id: s}\n- {call: Other}\nreturn: s\n"
    )
    renamed = text.replace("Other", "Another")
    assert (Team.parse(text).key() == Team.parse(renamed).key()) is (way is None)
    renamed = text.replace("First", "Second")
    assert (Team.parse(text).key() == Team.parse(renamed).key()) is (
        way in (None, "a tool that names an agent")
    )
