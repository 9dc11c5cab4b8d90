#!/usr/bin/env bash
# TRL 1.16.0 with transformers 5.17.0: a tool call that a published chat template renders is read back with other arguments. TRL's
# `add_response_schema` sets the response template of the family, and `parse_response(..., tools=...)` of transformers reads what the model
# wrote (as GRPOTrainer does in its tool loop):
#
#   - Qwen3.5 (and GLM-4.5): blanks and line ends at both ends of a text argument are lost, so that a file is written without its last one
#   - Qwen3, whose calls are JSON: in a parameter of several types (`anyOf` string or null, string or integer) the text "null" becomes null
#     and the text "7" the number 7, although JSON says which of them it is; Llama 3.1 likewise
#   - a JSON text that contains `</tool_call>` makes the whole call vanish
#   - Qwen3.5: 1e+22 of a `number` becomes an integer
#
# Output of the last part of this script:
#   qwen3 {"text": "\n x\n"}: [{'text': '\n x\n'}]
#   qwen3 {"either": "7"}: [{'either': 7}]
#   qwen3 {"optional": "null"}: [{'optional': None}]
#   qwen3 {"text": "ends in </tool_call>"}: []
#   qwen3_5_think {"text": "x"}: [{'text': 'x'}]
#   qwen3_5_think {"text": "\tx = 1\n"}: [{'text': 'x = 1'}]
#   qwen3_5_think {"text": "\n"}: [{'text': ''}]
#   qwen3_5_think {"number": 1e+22}: [{'number': 10000000000000000000000}]
#   glm4moe {"text": " x\n"}: [{'text': 'x'}]
#   llama3_1 {"either": "7"}: [{'either': 7}]
#   llama3_1 {"optional": "null"}: [{'optional': None}]
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0 trl==1.16.0 jmespath==1.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import re
import sys

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, parse_response

PARAMETERS = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
TOOL = {"type": "function", "function": {"name": "act", "description": "Acts.", "parameters": {"type": "object", "properties": PARAMETERS}}}
USER = {"role": "user", "content": "Go."}


def tokenizer_of(family):
    """One token for each byte, and one for each mark of the chat template."""
    template = (pathlib.Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja").read_text()
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(mark, normalized=False) for mark in sorted(set(re.findall(r"<\|[a-z_]+\|>|</?[a-z_]+>", template)))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return add_response_schema(tokenizer)


def read_back(tokenizer, arguments):
    call = {"type": "function", "function": {"name": "act", "arguments": arguments}}
    prompt = tokenizer.apply_chat_template([USER], tools=[TOOL], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(
        [USER, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=[TOOL], tokenize=False
    )
    same = next(place for place, (a, b) in enumerate(zip(prompt + "\0", whole)) if a != b)
    prefix, reply = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (whole[:same], whole[same:]))
    parsed = parse_response(tokenizer, reply, prefix=prefix, tools=[TOOL])
    return [call["function"]["arguments"] for call in parsed.get("tool_calls", [])]


CASES = {
    "qwen3": [
        ({"text": "\n x\n"}, [{"text": "\n x\n"}]),
        ({"either": "7"}, [{"either": 7}]),
        ({"optional": "null"}, [{"optional": None}]),
        ({"text": "ends in </tool_call>"}, []),
    ],
    "qwen3_5_think": [
        ({"text": "x"}, [{"text": "x"}]),
        ({"text": "\tx = 1\n"}, [{"text": "x = 1"}]),
        ({"text": "\n"}, [{"text": ""}]),
        ({"number": 1e22}, [{"number": 10**22}]),
    ],
    "glm4moe": [({"text": " x\n"}, [{"text": "x"}])],
    "llama3_1": [({"either": "7"}, [{"either": 7}]), ({"optional": "null"}, [{"optional": None}])],
}
as_described = []
for family, cases in CASES.items():
    tokenizer = tokenizer_of(family)
    for arguments, seen in cases:
        back = read_back(tokenizer, arguments)
        print(f"{family} {json.dumps(arguments)}: {back}")
        as_described.append(json.dumps(back) == json.dumps(seen))
sys.exit(0 if all(as_described) else 1)
PYTHON
