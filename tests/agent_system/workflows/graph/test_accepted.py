"""What has no sense is refused, what has one is accepted, and a team is written as it was read."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from agent_system.agent import Entry
from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from agent_system.workflows.graph.agents import projector, quoted
from agent_system.workflows.graph.schema import AgentAnswer, Quote
from agent_system.workflows.graph.source import read_text, write_text
from verl.trainer.plan.command_line import compose_config

PLAIN = "  A: {prompt: x}\n"
TWO = "- {call: A, id: a}\n- {call: A, id: b}\n"
LOOKS = "\x85\u2028\u2029\ufeff\u200b\xa0\u3000\t\n\r\u202e\U000e0001\ufffe\uffff\U0010ffff\xad\u2060🙂é中"


def team(steps: str = TWO, returned: str = "a", agents: str = PLAIN) -> str:
    return f"team: 1\nagents:\n{agents}do:\n{steps}\nreturn: {returned}\n"


def problem(text: str) -> str:
    with pytest.raises(AgentSystemError) as error:
        Team.parse(text)
    assert "\n" not in str(error.value)
    return str(error.value)


@cache
def characters() -> dict[str, str]:
    """For each category of Unicode, the first characters, some of the middle and the last ones."""
    by_category: dict[str, list[str]] = {}
    for number in range(sys.maxunicode + 1):
        by_category.setdefault(unicodedata.category(chr(number)), []).append(chr(number))
    return {
        category: "".join([*group[:150], *group[150 :: max(len(group) // 100, 1)], *group[-20:]])
        for category, group in by_category.items()
    }


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    "form", ["{c}", "a{c}b", "{c} a", "a {c}", "a\n{c}b", "a{c}\nb", "a: {c}", "{c}\n", "\n{c}", "# {c}{c}"]
)
def test_a_character_of_any_category_is_read_as_it_was_written(form: str, is_json: bool) -> None:
    refused: set[str] = set()
    texts: list[str] = []
    for category, group in characters().items():
        if category == "Cs":
            continue
        for character in group + LOOKS:
            if unicodedata.category(character) == "Cc" and character not in "\t\n\r\x85":
                refused.add(character)
            else:
                texts.append(form.replace("{c}", character))
    for start in range(0, len(texts), 400):
        value = {"values": texts[start : start + 400], **dict.fromkeys(texts[start : start + 400], 1)}
        assert read_text(write_text(value, is_json=is_json), "text", is_json=is_json).value == value
    for character in refused:
        with pytest.raises(AgentSystemError, match="is not allowed"):
            read_text(write_text({"a": character}, is_json=is_json), "text", is_json=is_json)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_team_is_saved_with_its_prompts_and_in_the_home_folder(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = {"team": 1, "agents": {"A": {"prompt": LOOKS}}, "do": [{"call": "A", "id": "a"}], "return": "a"}
    first = Team.parse(json.dumps(spec), is_json=True)
    assert first.agents["A"].prompt == LOOKS
    first.save(f"~/copy.{suffix}")
    again = Team.load(f"~/copy.{suffix}")
    assert (tmp_path / f"copy.{suffix}").is_file()
    assert (again.agents["A"].prompt, again.key()) == (first.agents["A"].prompt, first.key())


NAMES = [
    "Solver Agent", "Prüfer", "Z", "a\\", "a\\\\", "\\a", "1e5", "1_0", "true", "NULL", "null", "nan", "inf",
        "-1", "1.5", "0x1F",
    "Solver's", 'a"b', '"a"', 'a\\"b', "a'b\"c\\'d", "A, B", "[a", "a]", "{a}", "a:b", "a=b", "a$b",
        "$HOME a", "${x}1", "\\${a}",
    "a\\\\${b}\\", "`id` a", "$(id)", "a;1", "(a)", "a#1", "a!", "!!a", "a&b", "a|b", ">a", "~a", "a*", "a?",
        "@a", "%a", "a  b",
    "½1", "中a", "yes", "a,", "a.b", "a-b", "a/b", "5.",
]  # fmt: skip


@pytest.fixture(scope="module")
def agent_lists(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The setting that the error for a team of each of `NAMES` and another agent offers."""
    path = tmp_path_factory.mktemp("lists") / "team.yaml"
    settings = []
    for name in NAMES:
        agents = {name: {"prompt": "x"}, "Z9": {"prompt": "x"}}
        spec = {
            "team": 1,
            "agents": agents,
            "do": [{"call": n, "id": f"s{i}"} for i, n in enumerate(agents)],
            "return": "s0",
        }
        path.write_text(write_text(spec))
        with pytest.raises(AgentSystemError) as error:
            GraphOrchestra(GraphOptions(str(path))).check_agents({"Z9": (1.0, 1.0)})
        settings.append(str(error.value).rpartition("; set agent.")[2].join(["agent.", ""]))
    return settings


@cache
def composed_ids(argument: str) -> list[str]:
    """The agents of a command line with one argument, which both shells make of a setting."""
    return list(compose_config([argument]).agent.agent_ids)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_list_of_agents_can_be_pasted_into_a_shell(shell: str, agent_lists: list[str]) -> None:
    lines = [f"printf '%s\\0' {setting}" for setting in agent_lists]
    pasted = subprocess.run(
        [shell, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    ).stdout
    for argument, name in zip(pasted.split("\0")[:-1], NAMES, strict=True):
        assert composed_ids(argument) == [name, "Z9"], argument


def test_words_of_a_verdict_are_compared_as_replies_are() -> None:
    read = projector(
        AgentAnswer.model_validate(
            {"verdict": {"approve": ["LGTM!", " Yes. "], "reject": ["no.", "**No way**"]}}
        )
    )
    for reply, action in {
        "LGTM!": "approve",
        "lgtm": "approve",
        "yes": "approve",
        "No": "reject",
        "no way.": "reject",
        "so": "",
    }.items():
        assert read(f"<verify>{reply}</verify>").action == action
    for words, said in {
        "approve: [ok], reject: [OK]": "reject: 'ok' is a word of approve and of reject",
        "approve: ['ok!'], reject: [ok]": "'ok' is a word of approve and of reject",
        "approve: [rejected]": "'rejected' is a word of approve and of reject",
        "approve: ['!']": "approve: a word of a verdict needs more than marks",
        "reject: ['']": "reject: a word of a verdict needs",
    }.items():
        assert said in problem(team(agents=f"  A: {{prompt: x, answer: {{verdict: {{tag: v, {words}}}}}}}\n"))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ("[Left, left]", "choice: the choices 'Left' and 'left' are equal in any case"),
        ("[a, b, A]", "'a' and 'A' are equal"),
        ("[a, a]", "'a' and 'a' are equal"), ("['yes ', no]", "the choice 'yes ' has white space around it"),
        ("[' a', b]", "' a' has white space"), ("['', b]", "or is empty"), ('["a\\t", b]', "has white space"),
        ("[ß, SS]", "are equal"),
        ("[k, \u212a]", "are equal"),
    ],
)  # fmt: skip
def test_choices_that_no_reply_can_tell_apart_are_refused(choices: str, said: str) -> None:
    assert said in problem(team(agents=f"  A: {{prompt: x, answer: {{choice: {choices}}}}}\n"))


def test_every_choice_is_read_in_any_case() -> None:
    read = projector(AgentAnswer.model_validate({"choice": ["\u017fo", "Kelvin", "left hand"]}))
    for reply, action in {"SO": "\u017fo", "\u212aELVIN": "Kelvin", "my LEFT HAND": "left hand"}.items():
        assert read(reply).action == action


@pytest.mark.parametrize(
    ("entry", "actions", "text"),
    [
        ("{action}", ["", ""], "+"),
        ("{action}", [""], ""),
        ("{action}", [], "nobody"),
        ("[{action}]", ["7", ""], "[7]+[]"),
    ],
)
def test_the_empty_text_stands_where_there_is_no_reply(entry: str, actions: list[str], text: str) -> None:
    quote = Quote(entry=entry, separator="+", empty="nobody")
    assert quoted(quote, [Entry("A", "gibberish", action) for action in actions]) == text


IF = "- {if: {observation: x}, do: [%s], else: [%s]}"


@pytest.mark.parametrize(
    ("steps", "returned", "allowed"),
    [
        (IF % ("{call: A, id: c}", "{call: A, id: d}"), "[c, d]", True),
        (IF % ("{call: A, id: c}", "{call: A, id: d}"), "[d, c]", True),
        (IF % ("{call: A, id: c}", "{call: A, id: d}"), "c", False),
        (IF % ("{call: A, id: c}", "{call: A}"), "[c, a]", True),
        (IF % ("{call: A, id: c}", "{call: A}"), "c", False),
        (IF % ("{call: A, id: c}", "{call: A, id: c}"), "c", True),
        (IF % ("{call: A, id: c}", IF[2:] % ("{call: A, id: d}", "{call: A, id: e}")), "[c, d, e]", True),
        (IF % ("{call: A, id: c}", IF[2:] % ("{call: A, id: d}", "{call: A}")), "[c, d]", False),
        (IF % ("{call: A, id: c}", "{call: A, id: d}") + "\n- {vote: [c, d], id: v}", "v", True),
        (IF % ("{call: A, id: c}", "{call: A}") + "\n- {vote: [c, d], id: v}\n- {call: A, id: d}", "v", None),
        (IF % ("{call: A, id: c}", "{call: A, id: d}") + "\n- {spawn: {of: c, agent: A}, id: v}", "v", False),
        (IF % ("{call: A, id: c}", "{call: A, id: d}") + "\n- {spawn: {of: c, agent: A}, id: v}", "[v, d]",
            True),
        (IF % ("{call: A, id: c}, {stop: always}", "{call: A, id: d}"), "[c, d]", True),
        (IF % ("{stop: {observation: y}}", "{call: A}") + "\n- {call: A, id: c}", "c", False),
        (IF % ("{call: A}, {stop: always}", "{call: A}") + "\n- {call: A, id: c}", "c", False),
        (IF % ("{stop: always}", "{stop: always}") + "\n- {call: A, id: c}", "c", False),
        ("- {loop: 2, do: [" + IF[2:] % ("{stop: {observation: y}}", "{call: A}") + ", {call: A, id: c}]}",
            "c", False),
        ("- {loop: 2, do: [" + IF[2:] % ("{call: A, id: c}, {stop: always}", "{call: A, id: d}") + "]}",
            "[c, d]", True),
        ("- {call: A, id: c, unless: {observation: x}}\n- {call: A, id: d, unless: {observation: x}}",
            "[c, d]", False),
        ("- {parallel: [[" + IF[2:] % ("{call: A, id: c}", "{call: A, id: d}") + "], {call: A}]}", "[c, d]",
            True),
        ("- {parallel: [[{loop: 2, do: [{call: A}, {stop: {observation: x}}, {call: A, id: c}]}], {call: "
            "A}]}", "c", False),
        ("\n".join(IF % (f"{{call: A, id: x{i}}}", f"{{call: A, id: y{i}}}") for i in range(40)),
            "[x39, y39]", True),
    ],
)  # fmt: skip
def test_a_returned_step_that_may_be_left_out_needs_a_default(
    steps: str, returned: str, allowed: bool | None
) -> None:
    text = team(TWO + steps, returned)
    if allowed:
        Team.parse(text)
    elif allowed is None:
        assert "cannot have run before" in problem(text)
    else:
        assert "may be left out" in problem(text)
    if allowed is not None:
        Team.parse(team(TWO + steps, f"{{of: {returned}, default: x}}"))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("- {vote: [a, a, b], id: v}", "do[2].vote: 'a' is there twice"),
        ("- {call: A, sees: [a, b, a]}", "sees: 'a' is there twice"),
        ("- {vote: [v, a], id: v}", "do[2].vote[0]: the step 'v' cannot have run before"),
        ("- {vote: [a, l], id: v}\n- {call: A, id: l}", "do[2].vote[1]: the step 'l' cannot have run before"),
        ("- {spawn: {of: v, agent: A}, id: v}", "spawn.of: the step 'v' cannot have run before"),
        ("- {spawn: {of: l, agent: A}}\n- {call: A, id: l}", "spawn.of: the step 'l' cannot have run before"),
        ("- {parallel: [[{vote: [a, l], id: v}, {call: A, id: l}], {call: A}]}",
            "'l' cannot have run before"),
        ("- {if: {of: a, is: x}, do: [{call: A, id: l}], else: [{vote: [a, l]}]}",
            "'l' cannot have run before"),
        ("- {vote: A, n: null, id: v}", "needs n, the number of calls"),
        ("- {vote: [a, b], n: null}", "has no n"),
        ("- {loop: 2, do: [{vote: [v, a], id: v}, {call: A}]}", None),
        ("- {loop: 2, do: [{call: A}, {vote: [a, l]}, {call: A, id: l}]}", None),
        ("- {loop: 2, do: [{spawn: {of: v, agent: A}, id: v}]}", None),
        ("- {loop: 2, do: [{if: {of: a, is: x}, do: [{call: A, id: l}], else: [{vote: [a, l]}]}]}", None),
    ],
)  # fmt: skip
def test_steps_that_can_never_have_run_are_no_candidates(steps: str, said: str | None) -> None:
    if said is None:
        Team.parse(team(TWO + steps))
    else:
        assert said in problem(team(TWO + steps))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return: a", "return_: a"), ("return: a", "return: a\nreturn_: b"),
        ("{prompt: x}", "{prompt: x, as_: Q}"),
        ("{prompt: x}", "{class_: math/Solver Agent}"), ("{prompt: x}", "{prompt: x, as: Q, as_: R}"),
        ("id: b}", "id: b, unless: {of: a, is_: x}}"), ("id: b}", "id: b, unless: {of: a, is: x, is_: y}}"),
        ("id: b}", "id: b, unless: {of: a, in_: [x]}}"),
        ("- {call: A, id: b}", "- {if: {of: a, is: x}, do: [{call: A}], else_: [{call: A}]}"),
        ("- {call: A, id: b}", "- {if_: {of: a, is: x}, do: [{call: A}]}"),
    ],
)  # fmt: skip
def test_the_names_of_python_are_no_fields(old: str, new: str) -> None:
    assert old in team()
    said = problem(team().replace(old, new))
    assert "no such field" in said or "expected a step" in said


def test_the_same_returned_step_twice_is_refused() -> None:
    assert "return.of: 'a' is there twice" in problem(team(returned="[a, b, a]"))


@pytest.mark.parametrize(
    "text", ["a\\nb", "a\\rb", "a\\r\\nb", "a\\Nb", "a\\Lb", "a\\Pb", '#1; `x` \\"y\\" <b>', "a\\n"]
)
def test_a_chart_has_one_line_for_each_box(text: str) -> None:
    lines = (
        Team.parse(team(TWO + f'- {{if: {{of: a, is: "{text}"}}, do: [{{call: A}}]}}')).mermaid().split("\n")
    )
    box = next(line for line in lines if "a.action" in line)
    assert len(
        Team.parse(team(TWO + "- {if: {of: a, is: x}, do: [{call: A}]}")).mermaid().split("\n")
    ) == len(lines)
    inside = box.removeprefix('  n2{"').removesuffix('"}').replace("<br/>", "")
    assert len(box.splitlines()) == 1 and not set('"<>`') & set(inside) and "#1;" not in inside
