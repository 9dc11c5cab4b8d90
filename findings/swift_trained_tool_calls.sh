#!/usr/bin/env bash
# ms-swift 4.6.0: nine of its agent templates write the arguments of the tool calls in a training conversation as Python prints them, in
# single quotes and with True and None: `Action Input: {'city': 'Rome', 'now': True}`. So do those of ReAct, Qwen-Agent's format, ToolBench
# and GLM-4. The text is what the loss of supervised fine-tuning is on, and what the history of an RL rollout shows. The same templates
# tell the model to "Format the arguments as a JSON object", and their parsers hand the text after the mark on as JSON: arguments that were
# JSON in the data set are none any more, whether they were given as an object or as text. Templates of newer families (hermes, Llama 3,
# Mistral) write JSON.
#
# The package is installed alone; of what its modules import only the names are there.
#
# Output of the last part of this script:
#   react_en: 'Action: weather\nAction Input: {\'city\': "L\'Aquila", \'now\': True, \'unit\': None}\nObservation:'
#   qwen_en: '✿FUNCTION✿: weather\n✿ARGS✿: {\'city\': "L\'Aquila", \'now\': True, \'unit\': None}\n✿RESULT✿:'
#   glm4: 'weather\n{\'city\': "L\'Aquila", \'now\': True, \'unit\': None}<|observation|>'
#   hermes: '<tool_call>\n{"name": "weather", "arguments": {"city": "L\'Aquila", "now": true, "unit": null}}\n</tool_call>'
#   not JSON: ['chatglm4', 'glm4', 'qwen_en', 'qwen_en_parallel', 'qwen_zh', 'qwen_zh_parallel', 'react_en', 'react_zh', 'toolbench']
#   the instruction of react_en says "Format the arguments as a JSON object.": True
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps ms-swift==4.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib
import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path


class Names(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


site = Path(find_spec("swift").origin).parent.parent
for name in ("swift", "swift.agent_template"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(site / name.replace(".", "/"))]
for name in ("swift.infer_engine", "swift.template", "swift.utils"):
    sys.modules[name] = Names(name)
templates = importlib.import_module("swift.agent_template.mapping").agent_template_map

ARGUMENTS = {"city": "L'Aquila", "now": True, "unit": None}
FIELDS = {"city": {"type": "string"}, "now": {"type": "boolean"}, "unit": {"type": "string"}}
TOOL = {"name": "weather", "description": "Weather.", "parameters": {"type": "object", "properties": FIELDS}}
FORMS = [ARGUMENTS, json.dumps(ARGUMENTS)]  # as an object, and as OpenAI's API has them


def written(name, arguments):
    content = json.dumps({"name": "weather", "arguments": arguments})
    return templates[name]()._format_tool_calls([{"role": "tool_call", "content": content}])


for name in ("react_en", "qwen_en", "glm4", "hermes"):
    print(f"{name}: {written(name, ARGUMENTS)!r}")
# react_grpo has react_en's
printed = sorted(n for n in templates if n != "react_grpo" and all(repr(ARGUMENTS) in written(n, form) for form in FORMS))
print(f"not JSON: {printed}")
told = "Format the arguments as a JSON object." in templates["react_en"]()._format_tools([{"type": "function", "function": TOOL}], "")
print(f'the instruction of react_en says "Format the arguments as a JSON object.": {told}')
SEEN = ["chatglm4", "glm4", "qwen_en", "qwen_en_parallel", "qwen_zh", "qwen_zh_parallel", "react_en", "react_zh", "toolbench"]
as_json = all(json.dumps(ARGUMENTS) in written("hermes", form) for form in FORMS)
sys.exit(0 if printed == SEEN and told and as_json else 1)
PYTHON
