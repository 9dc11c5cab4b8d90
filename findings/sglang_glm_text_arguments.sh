#!/usr/bin/env bash
# SGLang 0.5.23: the tool-call parser of GLM-4.5 (`--tool-call-parser glm45`) changes text arguments. The model writes a value without
# quotes (`<arg_value>3.10</arg_value>`), and the schema of the tool says `string`: the parser first reads the value as JSON or Python and
# then writes what it has read as text. So the version "3.10" arrives as "3.1", "1e5" as "100000.0", "true" as "True", "null" as "None" and
# a text in quotes without them. The same request with `stream=True` gives the text as it was written.
#
# The package is imported without its `__init__`, which needs a GPU's libraries; the parser itself is plain Python.
#
# Output of the last part of this script:
#   '3.10': whole reply '3.1', streamed '3.10'
#   '1e5': whole reply '100000.0', streamed '1e5'
#   'true': whole reply 'True', streamed 'true'
#   'null': whole reply 'None', streamed 'null'
#   '"as is"': whole reply 'as is', streamed '"as is"'
#   'plain': whole reply 'plain', streamed 'plain'
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps sglang==0.5.23
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0 xgrammar==0.2.8 openai==2.8.0 aiohttp \
    dill ipython jinja2 msgspec numpy orjson partial-json-parser pillow pybase64 pydantic regex requests rich sentencepiece tiktoken tqdm \
    zstandard 2> /dev/null  # pip lists what of sglang's requirements is missing
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.util
import json
import pathlib
import re
import sys
import types

ROOT = pathlib.Path(importlib.util.find_spec("sglang").origin).parent
for name, path in (("sglang", ROOT), ("sglang.srt", ROOT / "srt")):
    package = types.ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [Tool(type="function", function={"name": "act", "description": "Acts.", "parameters": PARAMETERS})]


def whole(reply):
    text, calls = FunctionCallParser(TOOLS, "glm45").parse_non_stream(reply)
    return json.loads(calls[0].parameters)["text"]


def streamed(reply):
    parser = FunctionCallParser(TOOLS, "glm45")
    arguments = ""
    for part in re.findall(r"<[^<>]*>|.", reply, re.DOTALL):  # marks are single tokens
        text, calls = parser.parse_stream_chunk(part)
        arguments += "".join(call.parameters or "" for call in calls)
    return json.loads(arguments)["text"]


CASES = {"3.10": "3.1", "1e5": "100000.0", "true": "True", "null": "None", '"as is"': "as is", "plain": "plain"}
as_described = []
for written, seen in CASES.items():
    reply = f"<tool_call>act\n<arg_key>text</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>"
    at_once, in_parts = whole(reply), streamed(reply)
    print(f"{written!r}: whole reply {at_once!r}, streamed {in_parts!r}")
    as_described.append((at_once, in_parts) == (seen, written))
sys.exit(0 if all(as_described) else 1)
PYTHON
