#!/usr/bin/env bash
# LLaMA-Factory 0.9.5: the tool calls on which supervised fine-tuning trains are not those of the model's family for four of its templates.
# The target of a `function` message is made by the formatter of the template, not by the model's chat template:
#
#   glm4_moe (GLM-4.5, also glm4_5v)  without the end `</tool_call>`
#   seed_oss                          `<function=price` without its `>`, behind a second begin token
#   minimax2                          without `<minimax:tool_call>` around it
#   gemma4 (also gemma4n)             inside `<|tool>` and `<tool|>`, which stand around declarations of tools, and without an end of turn
#
# The first three contradict the instruction that the same template puts into the system message, and what they write is not read as a call
# by the parser of the same format (glm4_moe, minimax2). A model trained so writes calls that engines do not read, and RL that starts from
# it gets no tool results. Qwen's targets are those of its chat template.
#
# The package is installed alone; `datasets`, `fsspec` and the module for pictures, which it imports, are replaced by empty ones. The published
# templates of GLM-4.5, Gemma 4 and Qwen3 are those of TRL 1.16.0.
#
# Output of the last part of this script:
#   qwen3: '<tool_call>\n{"name": "price", "arguments": {"fruit": "plum"}}\n</tool_call><|im_end|>\n'
#     in the published template's text True
#     read by its own parser True
#   glm4_moe: '\n<tool_call>price\n<arg_key>fruit</arg_key>\n<arg_value>plum</arg_value>'
#     '</tool_call>' in its instruction True, in the target False
#     read by its own parser False
#   seed_oss: '{bos_token}\n\n<seed:tool_call>\n<function=price\n<parameter=fruit>plum</parameter>\n</function>\n</seed:tool_call>{eos_token}'
#     '<function=\\w+>' in its instruction True, in the target False
#     read by its own parser True
#   minimax2: '<invoke name="price">\n<parameter name="fruit">plum</parameter>\n</invoke>[e~[\n'
#     '<minimax:tool_call>' in its instruction True, in the target False
#     read by its own parser False
#   gemma4: '<|tool><|tool_call>call:price{fruit:<|"|>plum<|"|>}<tool_call|><tool|>'
#     in the published template's text False
#     read by its own parser True
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps llamafactory==0.9.5 trl==1.16.0 jinja2==3.1.6 markupsafe==3.0.3 \
  typing_extensions==4.16.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib
import json
import re
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import jinja2


class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *values, **named: None


site = Path(find_spec("llamafactory").origin).parent.parent
for name in ("datasets", "fsspec", "llamafactory.data.mm_plugin", "llamafactory.extras.logging"):
    sys.modules[name] = Empty(name)
for name in ("llamafactory", "llamafactory.data", "llamafactory.extras"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(site / name.replace(".", "/"))]
sys.modules["llamafactory.extras"].logging = sys.modules["llamafactory.extras.logging"]
TEMPLATES = importlib.import_module("llamafactory.data.template").TEMPLATES

TOOL = {
    "name": "price",
    "description": "Price.",
    "parameters": {"type": "object", "properties": {"fruit": {"type": "string", "description": "Fruit."}}, "required": ["fruit"]},
}
CALL = {"name": "price", "arguments": {"fruit": "plum"}}
MESSAGES = [
    {"role": "user", "content": "Plums?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": CALL}]},
    {"role": "tool", "name": "price", "tool_call_id": "a", "content": "7"},
]


def text_of(slots):
    return "".join(slot if isinstance(slot, str) else f"{{{next(iter(slot))}}}" for slot in slots)


def published(name):
    """The conversation as the family's chat template shows it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    source = (site / "trl" / "chat_templates" / f"{name}.jinja").read_text()
    return environment.from_string(source).render(messages=MESSAGES, tools=[{"type": "function", "function": TOOL}], bos_token="")


as_described = []


def check(line, seen, expected):
    print(f"  {line} {seen}")
    as_described.append(seen == expected)


# template, its published one, what its instruction shows, whether the target is the published text, whether its own parser reads it
CASES = [
    ("qwen3", "qwen3", None, True, True),
    ("glm4_moe", "glm4moe", "</tool_call>", None, False),
    ("seed_oss", None, r"<function=\w+>", None, True),
    ("minimax2", None, "<minimax:tool_call>", None, False),
    ("gemma4", "gemma4", None, False, True),
]
for name, family, mark, same, is_read in CASES:
    template = TEMPLATES[name]
    target = text_of(template.format_function.apply(content=json.dumps([CALL]), thought_words=template.thought_words))
    print(f"{name}: {target!r}")
    if mark:
        instruction = text_of(template.format_tools.apply(content=json.dumps([TOOL])))
        told, kept = (bool(re.search(mark, text)) for text in (instruction, target))
        check(f"{mark!r} in its instruction {told}, in the target", kept, False)
        as_described.append(told)
    if family:
        shown = published(family)
        if same is not None:
            check("in the published template's text", target.strip() in shown, same)
        elif mark:
            as_described.append(mark in shown.partition("Plums?")[2])
    written = re.sub(r"\{\w+_token\}|<\|im_end\|>|\[e~\[", "", target).strip("\n")  # as a reply is decoded
    check("read by its own parser", isinstance(template.extract_tool(written), list), is_read)
sys.exit(0 if all(as_described) else 1)
PYTHON
