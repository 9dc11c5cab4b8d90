"""The syntaxes that `tool_format` names, as model families write them."""

from __future__ import annotations

from agent_system.tools.formats.syntax import ANYTHING, ID, NAME, NUMBER, ItemMarks, KeyNames, Syntax

_PARAMETERS = KeyNames(arguments="parameters")
_PYTHON_MARKS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")

NAMED: dict[str, Syntax] = {
    "hermes": Syntax("json", "<tool_call>\n", end="\n</tool_call>"),
    "llama3": Syntax("json", keys=_PARAMETERS, around=_PYTHON_MARKS),
    "json": Syntax("json", fenced=True, around=("<|python_tag|>",)),
    "pythonic": Syntax("literal", header=(NAME, "("), around=_PYTHON_MARKS),
    "llama3_builtin": Syntax("literal", header=(NAME, ".call", "("), before="<|python_tag|>"),
    "qwen3_coder": Syntax(
        "items",
        "<tool_call>\n<function=",
        (NAME, ">"),
        "</function>\n</tool_call>",
        items=ItemMarks("<parameter=", ">\n", "\n</parameter>"),
    ),
    "glm": Syntax(
        "items",
        "<tool_call>",
        (NAME,),
        "</tool_call>",
        items=ItemMarks("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    "mistral": Syntax("json", before="[TOOL_CALLS]"),
    "mistral_v11": Syntax("object", "[TOOL_CALLS]", (NAME, "[CALL_ID]", ID, "[ARGS]")),
    "mistral_v13": Syntax("object", "[TOOL_CALLS]", (NAME, "[ARGS]")),
    "deepseek_v3": Syntax(
        "object",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        (NAME, "```json"),
        "```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Syntax(
        "object",
        "<｜tool▁call▁begin｜>",
        (NAME, "<｜tool▁sep｜>"),
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": Syntax(
        "items",
        '<｜DSML｜invoke name="',
        (NAME, '">'),
        "</｜DSML｜invoke>",
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        items=ItemMarks(
            '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>", f'" string="{ANYTHING}">'
        ),
    ),
    "harmony": Syntax(
        "object",
        "to=functions.",
        (NAME, ANYTHING, "<|message|>"),
        "<|call|>",
        "<|start|>assistant\n<|channel|>commentary",
    ),
    "kimi_k2": Syntax(
        "object",
        "<|tool_call_begin|>functions.",
        (NAME, ":", NUMBER, "<|tool_call_argument_begin|>"),
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "minimax_m2": Syntax(
        "items",
        '<invoke name="',
        (NAME, '">'),
        "</invoke>",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        items=ItemMarks('<parameter name="', '">', "</parameter>"),
    ),
    "granite": Syntax("json", before="<|tool_call|>"),
    "phi4": Syntax("json", before="functools[", after="]"),
    "command": Syntax(
        "json",
        before="<|START_ACTION|>",
        after="<|END_ACTION|>",
        keys=KeyNames("tool_name", "parameters", "tool_call_id"),
    ),
    "functiongemma": Syntax(
        "literal",
        "<start_function_call>call:",
        (NAME, "{"),
        "<end_function_call>",
        quote="<escape>",
        separator=":",
        close="}",
    ),
    "gemma4": Syntax(
        "literal", "<|tool_call>call:", (NAME, "{"), "<tool_call|>", quote='<|"|>', separator=":", close="}"
    ),
    "lfm2": Syntax("literal", header=(NAME, "("), before="<|tool_call_start|>[", after="]<|tool_call_end|>"),
    "seed": Syntax(
        "items",
        "<seed:tool_call>\n<function=",
        (NAME, ">"),
        "</function>\n</seed:tool_call>",
        items=ItemMarks("<parameter=", ">", "</parameter>"),
    ),
    "nemotron": Syntax("json", before="<TOOLCALL>", after="</TOOLCALL>"),
    "olmo": Syntax("literal", header=(NAME, "("), before="<function_calls>\n", after="\n</function_calls>"),
}
