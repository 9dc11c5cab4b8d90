"""Every syntax of tool calls that has a name, and what replies make of it: several calls, hard texts, cuts,
and markup without end.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_system.tools.formats import FORMATS, OfferedTools, read_calls, split_calls, syntaxes_of
from agent_system.tools.formats.derive import derived
from agent_system.tools.formats.syntax import TrialCall
from tests.cpu_time import cpu_seconds

OFFERED = OfferedTools(
    {
        "price": {
            "type": "object",
            "properties": {
                "fruit": {"type": "string"},
                "count": {"type": "integer"},
                "ripe": {"type": "boolean"},
                "more": {"type": "object"},
            },
        },
        "clock": {"type": "object", "properties": {}},
    }
)
SIZE = 200_000  # characters; a quadratic reader takes minutes
DSML = "｜DSML｜"


def in_json(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def items(arguments: dict[str, Any], begin: str, middle: str, end: str) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return "".join(f"{begin}{key}{middle}{text}{end}" for key, text in texts.items())


def gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(inner, quote)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


# How each syntax writes one call; several follow each other.
WRITERS = {
    "hermes": lambda n, a: f"<tool_call>\n{in_json(n, a)}\n</tool_call>\n",
    "llama3": lambda n, a: in_json(n, a, "parameters"),
    "json": in_json,
    "qwen3_coder": lambda n, a: (
        f"<tool_call>\n<function={n}>\n"
        + items(a, "<parameter=", ">\n", "\n</parameter>\n")
        + "</function>\n</tool_call>\n"
    ),
    "glm": lambda n, a: (
        f"<tool_call>{n}\n{items(a, '<arg_key>', '</arg_key><arg_value>', '</arg_value>')}</tool_call>\n"
    ),
    "mistral_v11": lambda n, a: f"[TOOL_CALLS]{n}[CALL_ID]abc123XYZ[ARGS]{json.dumps(a)}",
    "mistral_v13": lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}",
    "deepseek_v3": lambda n, a: (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{json.dumps(a)}\n```<｜tool▁call▁end｜>\n"
    ),
    "deepseek_v31": lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{json.dumps(a)}<｜tool▁call▁end｜>",
    "deepseek_v32": lambda n, a: (
        f'<{DSML}invoke name="{n}">\n'
        + "".join(
            f'<{DSML}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
            f"{value if isinstance(value, str) else json.dumps(value)}</{DSML}parameter>\n"
            for key, value in a.items()
        )
        + f"</{DSML}invoke>\n"
    ),
    "harmony": lambda n, a: (
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{json.dumps(a)}<|call|>"
    ),
    "kimi_k2": lambda n, a: (
        f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{json.dumps(a)}<|tool_call_end|>"
    ),
    "minimax_m2": lambda n, a: (
        f'<invoke name="{n}">\n{items(a, f"<parameter name={chr(34)}", f"{chr(34)}>", "</parameter>")}</invoke>\n'
    ),
    "functiongemma": lambda n, a: f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>",
    "gemma4": lambda n, a: f"<|tool_call>call:{n}{gemma(a, chr(60) + '|' + chr(34) + '|>')}<tool_call|>",
    "seed": lambda n, a: (
        f"<seed:tool_call>\n<function={n}>\n{items(a, '<parameter=', '>', '</parameter>')}</function>\n</seed:tool_call>\n"
    ),
}
# How those write calls whose marks stand around all of them.
GROUPED = {
    "pythonic": ("[", python, ", ", "]"),
    "mistral": ("[TOOL_CALLS][", in_json, ", ", "]"),
    "granite": ("<|tool_call|>[", in_json, ", ", "]"),
    "phi4": ("functools[", in_json, ", ", "]"),
    "command": (
        "<|START_ACTION|>[",
        lambda n, a: json.dumps({"tool_call_id": "0", "tool_name": n, "parameters": a}),
        ",\n",
        "]<|END_ACTION|>",
    ),
    "lfm2": ("<|tool_call_start|>[", python, ", ", "]<|tool_call_end|>"),
    "nemotron": ("<TOOLCALL>[", in_json, ", ", "]</TOOLCALL>"),
    "olmo": ("<function_calls>\n", python, "\n", "\n</function_calls>"),
    "llama3_builtin": ("<|python_tag|>", lambda n, a: python(f"{n}.call", a), "; ", ""),
}
PLAIN = {"fruit": "plum", "count": 3}
HARD = {
    "fruit": "  red, 'ripe' (2) [3] {4} <5> é\n\"x\"\n",
    "ripe": False,
    "more": {"a": [1, {"b": None}], "c": "x, y"},
}
UNMARKED = ("llama3", "json", "pythonic")


def written(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    if name in WRITERS:
        return "".join(WRITERS[name](*call) for call in calls)
    begin, writer, separator, end = GROUPED[name]
    return begin + separator.join(writer(*call) for call in calls) + end


def read(name: str, text: str, offered: OfferedTools = OFFERED) -> list[tuple[str, Any, bool]]:
    return [(r.name, r.arguments, bool(r.error)) for r in read_calls(text, syntaxes_of(name), offered)]


def test_every_named_syntax_is_tried_here() -> None:
    assert set(WRITERS) | set(GROUPED) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_come_back_as_they_were_written(name: str) -> None:
    price, clock, hard = ("price", PLAIN), ("clock", {}), ("price", HARD)
    for calls in ([price], [clock], [hard], [price, clock], [clock, hard, price]):
        assert read(name, written(name, *calls)) == [(n, a, False) for n, a in calls], calls
    thought = f"<think>\nperhaps {written(name, price)}\n</think>\n\n"
    assert read(name, thought + written(name, clock)) == [("clock", {}, False)], (
        "what is thought is not called"
    )
    assert read(name, thought) == []


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in UNMARKED])
def test_marked_calls_are_taken_out_of_the_text_around_them(name: str) -> None:
    content, calls = split_calls(
        f"I look.\n\n{written(name, ('price', PLAIN), ('clock', {}))}", syntaxes_of(name), OFFERED
    )
    assert content == "I look." and [c.name for c in calls] == ["price", "clock"]
    assert split_calls("Nothing to call.", syntaxes_of(name), OFFERED) == ("Nothing to call.", [])


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in UNMARKED])
def test_a_call_that_the_limit_cuts_is_told_to_the_model(name: str) -> None:
    whole = written(name, ("price", HARD))
    half = whole[: whole.index("x, y")]
    assert [error for _, _, error in read(name, half)] == [True]


@pytest.mark.parametrize("name", UNMARKED)
def test_an_answer_that_names_no_tool_is_no_call(name: str) -> None:
    assert read(name, written(name, ("cedar", {"height": 3}))) == []
    assert read(name, '{"name": "cedar", "age": 3}') == []
    assert read(name, f"I would write {written(name, ('price', PLAIN))}") == []


@pytest.mark.parametrize("name", FORMATS)
def test_markup_without_end_is_read_in_linear_time(name: str) -> None:
    one = written(name, ("price", PLAIN))
    half = one[: one.index("plum") + 2]
    texts = [one, half, one[: len(one) // 3], one[:-3] + '"', "[" * 9, '{"a":', '"\\', " \n"]
    for unit in texts:
        text = one[: one.index("plum")] + unit * (SIZE // len(unit))
        begin = cpu_seconds()
        read(name, text)
        read(name, unit * (SIZE // len(unit)))
        assert cpu_seconds() - begin < 1.0, f"{unit!r:.40}"


def test_the_ids_that_a_model_gives_its_calls_are_kept() -> None:
    def ids(name: str, text: str) -> list[str]:
        return [request.id for request in read_calls(text, syntaxes_of(name), OFFERED)]

    assert ids("mistral", '[TOOL_CALLS][{"name": "price", "arguments": {}, "id": "k3v9Qw2Lm"}]') == [
        "k3v9Qw2Lm"
    ]
    assert ids("mistral_v11", written("mistral_v11", ("clock", {}))) == ["abc123XYZ"]
    assert ids("kimi_k2", written("kimi_k2", ("clock", {}))) == ["functions.clock:0"]


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("three", "three"), ("true", True), ("null", None), ("[1, 'a']", [1, "a"])]
)
def test_a_plain_text_gets_the_type_of_the_schema(text: str, value: Any) -> None:
    types = {int: "integer", bool: "boolean", type(None): "integer", list: "array", str: "integer"}
    parameters = {
        "properties": {
            "x": {"type": types[type(value)]},
            "y": {"type": "string"},
            "z": {"anyOf": [{"type": "string"}]},
        }
    }
    call = f"<tool_call>f{items({'x': text, 'y': text, 'z': text}, '<arg_key>', '</arg_key><arg_value>', '</arg_value>')}</tool_call>"
    ((_, arguments, _),) = read("glm", call, OfferedTools({"f": parameters}))
    assert arguments == {"x": value, "y": text, "z": text}


TEXT_OR_NUMBER = OfferedTools(
    {
        "put": {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "b": {},
                "c": {"type": "integer"},
            },
        }
    }
)


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("pythonic", "[put(a='5', b=\"true\", c='7')]"),
        (
            "functiongemma",
            "<start_function_call>call:put{a:<escape>5<escape>,b:<escape>true<escape>,"
            "c:<escape>7<escape>}<end_function_call>",
        ),
        ("gemma4", '<|tool_call>call:put{a:<|"|>5<|"|>,b:<|"|>true<|"|>,c:<|"|>7<|"|>}<tool_call|>'),
    ],
)
def test_a_value_in_quotes_is_text_where_the_schema_allows_text(name: str, reply: str) -> None:
    (call,) = read_calls(reply, syntaxes_of(name), TEXT_OR_NUMBER)
    assert call.arguments == {"a": "5", "b": "true", "c": 7}


# Texts that look like values of other types, or like marks.
LIKE_OTHERS = (
    "42", "true", "null", "[1]", "", " x ", "\n", "{}", "it's", "5'", "a\\b", "x\n", "\n\nx\n\n",
    "</x>", "a, count=4",
    "3.0", "\\", '"', '""', "\u2028", "{'a': 1}", "]", ")", "a=b", "```json\n{}\n```", "\x00a", "&lt;b&gt;",
)  # fmt: skip
UNQUOTED = ("qwen3_coder", "glm", "minimax_m2", "seed")


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_that_looks_like_another_value_comes_back_as_text(name: str) -> None:
    texts = LIKE_OTHERS if name in UNQUOTED else (*LIKE_OTHERS, "<![CDATA[x]]>")
    for text in texts:
        arguments = {"fruit": text, "count": -3}
        assert read(name, written(name, ("price", arguments))) == [("price", arguments, False)], text


@pytest.mark.parametrize(("number", "read"), [("3", "5"), ("'3'", 5), ('"3"', 5)])
def test_where_a_template_writes_numbers_as_texts_the_schema_has_the_type(number: str, read: Any) -> None:
    shown = f"<call>look(city='Oslo', day='May', n={number})</call>"
    syntax = derived(shown, [TrialCall("look", {"city": "Oslo", "day": "May", "n": 3}, "call00000")])
    assert syntax is not None
    (call,) = read_calls("<call>put(a='5')</call>", [syntax], TEXT_OR_NUMBER)
    assert call.arguments == {"a": read}
