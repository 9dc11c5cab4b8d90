"""Bad and hostile files: one clear line each, with its place, within a second and 100 MB, and nothing of the
file is run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from tests.agent_system.workflows.graph.conftest import PAIR
from tests.cpu_time import cpu_seconds
from tests.house.source import ROOT

NESTED = "".join(f"{'  ' * d}- loop: 50\n{'  ' * d}  do:\n" for d in range(5))
DEEP_CALLS = f"do:\n{NESTED}          - {{call: Solver Agent, id: s}}\n          - call: Verifier Agent\n"
STEPS = PAIR[PAIR.index("do:") : PAIR.index("return")]
SOLVER = "answer: boxed"
CALL = "{call: Solver Agent, id: s}"
NEXT = "\n      - "
JSON_TEAM = json.loads(
    '{"team": 1, "agents": {"A": {"prompt": "{env_prompt}"}}, "do": [{"call": "A", "id": "s"}], "return": '
    '"s"}'
)

# What is written instead of what in PAIR, and what the message says.
CHANGES = {
    "big file": ("return: s", "return: s" + " # x" * 100_000, r"larger than 256 KiB"),
    "10 MB": ("return: s", "return: s" + " # x" * 2_600_000, r"larger than 256 KiB"),
    "prompt of 10 MB": ("Solve: ", "x" * 10_000_000, r"larger than 256 KiB"),
    "a million steps": (STEPS, "do:\n" + "- {call: Solver Agent}\n" * 1_000_000, r"larger than 256 KiB"),
    "long prompt": ("Solve: ", "x" * 40_000,
        r"3:\d+ agents\.Solver Agent\.prompt: a text of 40,0\d\d characters"),
    "many steps": (STEPS, "do:\n" + "- {call: Solver Agent}\n" * 300, r"do\[256\]: more than 256 steps"),
    "many values": ("return: s", f"return: [{'1,' * 30_000}]", "more than 20,000 values"),
    "brackets": ("return: s", "return: " + "[" * 100_000, r"11:108: nested more than 100 deep"),
    "braces": ("return: s", "return: " + "{a: " * 50_000, "nested more than 100 deep"),
    "dashes": ("return: s", "return:\n" + "- " * 100_000, "nested more than 100 deep"),
    "deep steps": (
        STEPS,
        "do: " + "[{loop: 1, do: " * 33 + "[{call: Solver Agent, id: s}]" + "}]" * 33 + "\n",
        r"steps are nested more than 32 deep",
    ),
    "anchor": ("return: s", "return: &a s", r"11:9: anchors and aliases are not allowed"),
    "alias bomb": (
        "team: 1",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nteam: 1",
        "1:4: anchors and aliases are not allowed",
    ),
    "python tag": (
        "return: s",
        "return: !!python/object/apply:os.system ['touch ran']",
        "11:9: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed",
    ),
    "own tag": ("return: s", "return: !x s", "the tag '!x' is not allowed"),
    "plain tag": ("return: s", "return: !!str s", "the tag 'tag:yaml.org,2002:str' is not allowed"),
    "binary": ("return: s", "return: !!binary aGk=", "is not allowed"),
    "merge": ("{prompt: \"Solve", "{<<: {}, prompt: \"Solve", "no such field"),
    "duplicate key": ("return: s", "return: s\nreturn: v",
        "12:1 return: the key is there twice, first in line 11"),
    "duplicate agent": ("do:\n  - loop", "do: []\ndo:\n  - loop", "the key is there twice"),
    "documents": ("return: s", "return: s\n---\nteam: 1", "one document only"),
    "directive": ("team: 1", "%YAML 1.1\n---\nteam: 1", "one document only, without directives"),
    "key of a list": ("return: s", "? [a]\n: 1\nreturn: s", "a key must be text"),
    "NUL": ("Solve: ", "\x00", r"3:\d+: the character '\\x00' is not allowed"),
    "escaped NUL": ("Solve: ", "\\0", r"the character '\\x00' is not allowed in a text"),
    "escape": ("Solve: ", "\x1b[31m", r"the character '\\x1b' is not allowed"),
    "lone surrogate": ("Solve: ", "\\ud800", "invalid Unicode character escape code"),
    "bidi name": ("  Solver Agent: ", '  "\u202eSolver": ', r"cannot be a name"),
    "empty name": ("  Solver Agent: ", '  "": ', "cannot be a name"),
    "name without letters": ("  Solver Agent: ", '  "\u4e2d": ', "cannot be a name"),
    "name of two lines": ("  Solver Agent: ", '  "a\\nb": ', "cannot be a name"),
    "no YAML": ("return: s", "return: [", "no YAML: did not find expected node content"),
    "tabs": ("  - loop", "\t- loop", "no YAML: found character that cannot start any token"),
    "tabs, in words": ("  - loop", "\t- loop", "indented by blanks, not by tabs"),
    "a text with a brace in a mapping": ('"Solve: {env_prompt}{team_context}"', "{env_prompt} Solve.",
        "a text that begins with { stands in quotes"),
    "a call under an if": ("{call: Solver Agent, id: s}", "{call: Solver Agent, id: s, if: {loop: last}}",
        "a call is left out by `unless"),
    "calls": (STEPS, DEEP_CALLS, r"do\[0\].*: a turn may make 625,000,000 calls, more than max_calls=1,000"),
    "unknown agent": (
        "call: Verifier Agent",
        "call: Verifer Agent",
        r"team\.yaml:9:10 do\[0\]\.do\[1\]\.call: no agent 'Verifer Agent'; did you mean 'Verifier Agent'\?$",
    ),
    "like itself": (SOLVER, "like: Solver Agent", "the agent is like itself: Solver Agent -> Solver Agent"),
    "like nobody": (SOLVER, "like: Solver", "no agent 'Solver'; did you mean 'Solver Agent'?"),
    "equal slugs": ("  Solver Agent: ", "  verifier_agent: ", "is 'verifier_agent' in metrics and folders, as"
        ),
    "idle agent": ("do:\n  -", "  Idle: {prompt: x}\ndo:\n  -", "agents.Idle: no step calls it; leave it out")
        ,
    "return of a step that may be left out": ("return: s", "return: v",
        r"may be left out; write \{of: \[v\], default"),
    "return of nothing": ("return: s", "return: t", "no step 't' that is known here; steps: s, v"),
    "attribute": ("Solve: ", "{env_prompt.__class__}", r"prompt: '\{env_prompt.__class__\}' is no plain name")
        ,
    "number": ("Solve: ", "{0}", r"'\{0\}' is no plain name"),
    "no name": ("Solve: ", "{}", r"'\{\}' is no plain name"),
    "item": ("Solve: ", "{step[0]}", r"'\{step\[0\]\}' is no plain name"),
    "conversion": ("Solve: ", "{step!r}", r"'\{step!r\}' is no plain name"),
    "width": ("Solve: ", "{step:>9999999}", r"'\{step:>9999999\}' is no plain name"),
    "nested width": ("Solve: ", "{step:{step}}", "is no plain name"),
    "open brace": ("{team_context}\", answer: boxed", "{team_context\", answer: boxed",
        "the template is malformed"),
    "closing brace": ("Solve: ", "}", "the template is malformed"),
    "unknown variable": ("{env_prompt}", "{env_promt}", "no variable '{env_promt}'; did you mean 'env_prompt'"
        ),
    "attribute in a quote": ("{role}", "{text.__class__}", "is no plain name"),
    "variable in a quote": ("{role}", "{env_prompt}", "no variable '{env_prompt}'"),
    "role by path": (SOLVER, "class: agent_system.workflows.math.team:SolverAgent", "is no registered class"),
    "role by file": (SOLVER, "class: /etc/passwd", "is no registered class"),
    "role of a file": (SOLVER, "class: graph/Solver Agent", "is no registered class"),
    "field of a class": (SOLVER, "class: math/Solver Agent", "quote: belongs to the class 'math/Solver Agent'"
        ),
    "tool by path": (SOLVER, "tools: ['os:system']",
        "tools.0.: no tool 'os:system'; known: calculator, python"),
    "tool twice": (SOLVER, "tools: [python, python]", "the tool 'python' is there twice"),
    "nan": ("loop: 2", "loop: nan", "expected a whole number, found 'nan'"),
    "dot nan": ("loop: 2", "loop: .nan", "expected a whole number, found '.nan'"),
    "too large": ("loop: 2", "loop: 1e999", "the number '1e999' is not finite"),
    "too long": ("loop: 2", "loop: 1" + "0" * 5000, "is not finite, or has more than 32 digits"),
    "true for 1": ("loop: 2", "loop: true", "expected a whole number, found True"),
    "true for the version": ("team: 1", "team: true", "expected 1, the version of the format, found True"),
    "another version": ("team: 1", "team: 2", "expected 1, the version of the format, found 2"),
    "text for a number": ("loop: 2", "loop: '2'", "expected a whole number, found '2'"),
    "half": ("loop: 2", "loop: 1.5", "expected a whole number, found 1.5"),
    "none": ("loop: 2", "loop: 0", "it should be greater than or equal to 1, found 0"),
    "below zero": ("loop: 2", "loop: -1", "it should be greater than or equal to 1, found -1"),
    "no steps": (STEPS, "do: []\n", "do: it should have at least 1 item"),
    "no step": ("{call: Solver Agent, id: s}", "Solver Agent", r"do\[0\]\.do\[0\]: expected a step, a mapping"
        ),
    "two kinds": ("{call: Solver Agent, id: s}", "{call: Solver Agent, vote: s}", "expected a step, a mapping"
        ),
    "unknown field": ("id: v,", "di: v,", r"9:32 do\[0\]\.do\[1\]\.di: no such field; did you mean 'id'"),
    "spawn of no agent": (CALL, "{spawn: {of: s}}", r"8:10 do.*spawn.agent: it is missing"),
    "spawn of a text": ("{call: Solver Agent, id: s}", "{spawn: s}", "spawn: expected a mapping, found 's'"),
    "spawn of an unknown step": (CALL, "{spawn: {of: t, agent: Solver Agent}, id: s}",
        r"8:18 do\[0\]\.do\[0\]\.spawn\.of: no step 't' that is known here; steps: s, v"),
    "spawn of an unknown agent": (CALL, "{spawn: {of: v, agent: Solver}, id: s}",
        r"spawn\.agent: no agent 'Solver'; did you mean 'Solver Agent'"),
    "spawn of many": (CALL, "{spawn: {of: v, agent: Solver Agent, max: 65}, id: s}",
        r"spawn\.max: it should be less than or equal to 64, found 65"),
    "spawn of none": (CALL, "{spawn: {of: v, agent: Solver Agent, max: 0}, id: s}",
        r"spawn\.max: it should be greater than or equal to 1"),
    "spawn without end": (CALL, "{spawn: {of: v, agent: Solver Agent, depth: 9}, id: s}",
        r"spawn\.depth: it should be less than or equal to 8, found 9"),
    "spawn of true": (CALL, "{spawn: {of: v, agent: Solver Agent, depth: true}, id: s}",
        "depth: expected a whole number, found True"),
    "spawn of too many calls": (CALL,
        CALL + NEXT + "{spawn: {of: s, agent: Solver Agent, max: 64, depth: 8}}",
        r"9:9 do\[0\]\.do\[1\]: a turn may make [0-9,]{19,} calls, more than max_calls=1,000"),
    "unknown field of a spawn": (CALL, "{spawn: {of: v, agent: Solver Agent, dept: 2}, id: s}",
        r"spawn\.dept: no such field; did you mean 'depth'"),
    "field of a spawn": (CALL, "{spawn: {of: v, agent: Solver Agent}, id: s}" + NEXT
        + "{stop: {of: s, field: votes}}",
        "the step 's' has no field 'votes'.*fields: action, valid, children, left_out"),
    "what a spawn sees": (CALL, "{spawn: {of: v, agent: Solver Agent}, sees: [w], id: s}",
        r"sees\[0\]: no step 'w'"),
    "return of a spawn of a step that may be left out": ("return: s", "return: w", "no step 'w'"),
    "delegate without an agent": (SOLVER, "tools: [delegate]",
        r"tools\[0\]: delegate needs the agent that it calls: \{delegate: Agent\}"),
    "delegate to nobody": (SOLVER, "tools: [python, {delegate: Verifer Agent}]",
        r"tools\[1\]\.delegate: no agent 'Verifer Agent'; did you mean 'Verifier Agent'"),
    "delegate twice": (SOLVER, "tools: [{delegate: Verifier Agent}, {delegate: Solver Agent}]",
        r"tools\[1\]: the tool 'delegate' is there twice"),
    "delegate to many": (SOLVER, "tools: [{delegate: Verifier Agent, max: 65}]",
        r"tools\[0\]\.max: it should be less"),
    "delegate with a wrong field": (SOLVER, "tools: [{delegate: Verifier Agent, most: 3}]",
        r"tools\[0\]\.most: no such field; .*fields: delegate, max, depth"),
    "delegate without end": (SOLVER, "tools: [{delegate: Solver Agent, max: 9, depth: 8}]",
        r"a turn may make 96,855,124 calls"),
    "a number for a tool": (SOLVER, "tools: [7]", r"tools\[0\].*: expected a text, found 7"),
    "id twice": ("id: v,", "id: s,", r"do\[0\]\.do.*: the step 's' is there twice"),
    "id with blanks": ("id: v,", "id: a b,", "cannot be a name: letters, digits, _ and -"),
    "unknown field of a step": ("field: approved", "field: aproved",
        "has no field 'aproved'; did you mean 'approved'"),
    "condition on an action": (", field: approved", "", "a condition on an action needs a comparison"),
    "two comparisons": ("field: approved", "is: a, in: [b]", "one comparison at most"),
    "a list to compare": ("field: approved", "is: [a]", "is: expected a text, a number, true, false or null"),
    "two conditions": ("{of: v, field: approved}", "{of: v, loop: last}",
        "must have exactly one of of, observation, loop"),
    "stop if yes": ("{stop: {of: v, field: approved}}", "{stop: yes}", "stop: expected a condition, or always"
        ),
    "vote without n": ("{call: Solver Agent, id: s}", "{vote: Solver Agent, id: s}",
        "needs n, the number of calls"),
    "vote of one": ("{call: Solver Agent, id: s}", "{vote: Solver Agent, n: 1, id: s}",
        "greater than or equal to 2"),
    "unknown answer": (SOLVER, "answer: boxd", "no answer 'boxd'; did you mean 'boxed'"),
    "a tag without its name": (SOLVER, "answer: tag", r"the answer tag is a mapping: {tag: name}"),
    "a choice without words": (SOLVER, "answer: choice", r"is a mapping: {choice: \[word, word\]}"),
    "two answers": (SOLVER, "answer: {tag: a, choice: [a, b]}", "answer must have exactly one of"),
    "a tag that is none": (SOLVER, "answer: {tag: 'a.*b'}", "cannot be a tag: letters, digits, _ and -"),
    "one choice": (SOLVER, "answer: {choice: [yes]}", "should have at least 2 items"),
    "no prompt": ('prompt: "Solve: {env_prompt}{team_context}", ', "",
        "it has no prompt, and no class that has one"),
    "options without a class": (SOLVER, "options: {a: 1}", "are of a class; this agent has none"),
    "no mapping": (PAIR, "- 1", "expected a mapping with team, agents, do and return"),
    "empty": (PAIR, "", "it is empty"),
}  # fmt: skip


def problem(path: Path) -> str:
    with pytest.raises(AgentSystemError) as error:
        Team.load(path)
    text = str(error.value)
    assert "\n" not in text and text.isprintable() and len(text) < 500, text
    return text


@pytest.mark.parametrize("case", CHANGES)
def test_a_bad_file_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    old, new, message = CHANGES[case]
    assert old in PAIR
    path = tmp_path / "team.yaml"
    path.write_text(PAIR.replace(old, new), encoding="utf-8")
    started = cpu_seconds()
    tracemalloc.start()
    try:
        text = problem(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert cpu_seconds() - started < 1.0
    assert peak < 100e6
    assert text.startswith(str(path))
    assert re.search(message, text) or message in text, text
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            "- {if: {of: s, is: x}, do: [{call: A, id: r}]}\n- {call: A}",
            "return: the step r may be left out; write {of: [r], default: ''}",
        ),
        ("- {stop: {loop: last}}", "a condition on the loop is outside of every loop"),
        ("- {stop: {of: zz, field: valid}}", "no step 'zz' that is known here; steps: s"),
        (
            "- {parallel: [{call: A, id: a}, [{call: A, unless: {of: a, is: x}}]]}",
            "no step 'a' that is known here",
        ),
        ("- {parallel: [{call: A, id: a}, [{call: A, sees: [a]}]]}", "no step 'a' that is known here"),
        ("- {parallel: [{call: A}, {stop: always}]}", "a stop in a branch of parallel must be in a loop"),
        ("- {parallel: [{call: A}]}", "should have at least 2 items"),
        ("- {stop: always}\n- {call: A}", r"do[2]: is never reached, behind stop: always"),
        ("- {call: A, sees: [b]}", "do[1].sees[0]: no step 'b' that is known here"),
        ("- {vote: [s, t]}", "do[1].vote[1]: no step 't'"),
        ("- {vote: [s]}", "expected an agent, or a list of two steps or more"),
        ("- {vote: A, n: 3, best: B}", "do[1].best: no agent 'B'"),
        ("- {vote: A, n: 2000}", "do[1]: a turn may make 2,001 calls"),
    ],
)
def test_a_step_that_refers_to_what_is_not_there_is_refused(steps: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    returned = "r" if "id: r" in steps else "s"
    path.write_text(
        f"team: 1\nagents: {{A: {{prompt: x}}}}\ndo:\n- {{call: A, id: s}}\n{steps}\nreturn: {returned}\n"
    )
    assert message in problem(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a key in double quotes"),
        ('{"a": 1,}', "expected a key in double quotes"),
        ('{"a" 1}', "expected ':' after a key"),
        ('{"a": 1 "b": 2}', "expected ',' or '}'"),
        ('{"a": yes}', "expected a value, found 'yes'"),
        ('{"a": NaN}', "expected a value, found 'NaN'"),
        ('{"a": 01}', "expected a value, found '01'"),
        ("{'a': 1}", "expected a key in double quotes"),
        ('{"a": 1} {', "expected nothing after the value"),
        ('{"a": 1, "a": 2}', "1:10 a: the key is there twice, first in line 1"),
        ('{"a": "\\ud800"}', "is not allowed in a text"),
        ('{"a": "\\u0000"}', "is not allowed in a text"),
        ('{"a": "x\ny"}', "Invalid control character"),
        ('{"a": "x', "Unterminated string"),
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"a":' * 100_000, "nested more than 100 deep"),
        ("", "it is empty"),
    ],
)  # fmt: skip
def test_bad_json_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "team.json"
    path.write_text(text)
    if len(text) > 300_000:
        message = "larger than 256 KiB"
    assert message in problem(path)


def test_json_takes_the_same_path(tmp_path: Path) -> None:
    path = tmp_path / "team.json"
    path.write_text(json.dumps(JSON_TEAM, indent="\t"))
    assert Team.load(path).calls == 1
    path.write_text(json.dumps(JSON_TEAM | {"return": "t"}, indent=1))
    assert problem(path).startswith(f"{path}:14:2 return: no step 't' that is known here")
    emoji = {**JSON_TEAM, "agents": {"A": {"prompt": "\U0001f600 {env_prompt}"}}}
    path.write_text(json.dumps(emoji))
    assert Team.load(path).agents["A"].prompt == "\U0001f600 {env_prompt}"


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "bytes", "name"])
def test_what_is_no_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "bytes":
        path.write_bytes(b"team: 1\n\xff")
    elif kind == "name":
        path = Path("a\0b")
    expected = {"missing": "No such file", "bytes": "not UTF-8 at byte 8", "name": "embedded null"}
    assert expected.get(kind, "cannot be read: ") in problem(path)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("class: os/system", "team.yaml:3:7 agents.A.class: no workflow 'os'; workflows: "),
        ("class: gateway/A", "is no registered class"),
        ("class: math/Solver", "agents.A.class: no agent named 'Solver' for orchestra 'math'"),
        ("class: math/Solver Agent, options: {max_lop_num: 1}",
            "agents.A.options: agent.orchestra.math.max_lop_num"),
        ("class: math/Solver Agent, options: {max_loop_num: true}", "must be int, found True"),
        ("prompt: x, tools: [search]", "no tool 'search'"),
    ],
)  # fmt: skip
def test_a_class_or_tool_that_is_not_registered_is_refused(agent: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(f"team: 1\nagents:\n  A: {{{agent}}}\ndo:\n- {{call: A, id: s}}\nreturn: s\n")
    with pytest.raises(AgentSystemError) as error:
        GraphOrchestra(GraphOptions(str(path))).make_agent("A", "math")
    assert message in str(error.value) and "\n" not in str(error.value)
    if "workflows: " in message:  # other tests have registered more
        listed = str(error.value).partition("workflows: ")[2].split(", ")
        assert listed == sorted(listed) and {"code", "farama", "math", "search"} <= set(listed)


def test_a_refused_file_imports_nothing() -> None:
    """A name in a file never becomes a module that is imported."""
    program = (
        "import sys; from agent_system.workflows.graph import GraphOptions, GraphOrchestra\n"
        "import pathlib, tempfile; p = pathlib.Path(tempfile.mkdtemp()) / 'team.yaml'\n"
        "p.write_text('team: 1\\nagents:\\n  A: {class: antigravity/A}\\ndo:\\n- {call: A, id: s}\\nreturn: "
        "s\\n')\n"
        "try: GraphOrchestra(GraphOptions(str(p)))\n"
        "except Exception as e: print(type(e).__name__, 'antigravity' in sys.modules, 'torch' in "
        "sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "AgentSystemError False False\n"
