#!/usr/bin/env bash
# xgrammar 0.2.8 (the default backend of vLLM 0.32 and SGLang): what a JSON schema says of a string is applied to the characters between the
# quotes of the JSON text, not to the string.
#
# 1. With `minLength` or `maxLength`, whatever they say, no escape is allowed: the string can hold no quote, no backslash and no end of a
#    line, as if the schema forbade them. Code or prose under `maxLength: 2000` is written on one line.
# 2. A `pattern` that asks for a quote, a backslash or an end of a line allows text that is not JSON (`"""`), and refuses the string that it
#    asks for. A pattern with a negated set or a dot allows none of these characters, escaped or not.
# 3. Keywords beside `anyOf`, `$ref` or in one of several `allOf` are left out: an object loses its other properties and what it requires.
#
# llguidance 1.9.1, the other backend, agrees with jsonschema 4.26.0 on all of these texts.
#
# Output of the last part of this script:
#   {"type": "string", "maxLength": 30} "two\nlines": jsonschema True, llguidance True, xgrammar False
#   {"type": "string", "minLength": 1} "a \"word\"": jsonschema True, llguidance True, xgrammar False
#   {"type": "string", "pattern": "^\"$"} "\"": jsonschema True, llguidance True, xgrammar False
#   {"type": "string", "pattern": "^\"$"} """: jsonschema False, llguidance False, xgrammar True
#   {"type": "string", "pattern": "^[a-z]:\\\\$"} "c:\\": jsonschema True, llguidance True, xgrammar False
#   {"type": "string", "pattern": "^[^a]$"} "\"": jsonschema True, llguidance True, xgrammar False
#   {"type": "object", ... "anyOf": ...} {"a":1,"b":"x"}: jsonschema True, llguidance True, xgrammar False
#   {"type": "object", ... "anyOf": ...} {"b":"x"}: jsonschema False, llguidance False, xgrammar True
#   {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}, "minimum": 5} 3: jsonschema False, llguidance False, xgrammar True
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8 llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys

import jsonschema
import llguidance
import xgrammar

BYTES = [bytes([value]) for value in range(256)]


class Tokenizer:
    """One token for each byte."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*BYTES, b"<end>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


INFO = xgrammar.TokenizerInfo([*BYTES, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
COMPILER = xgrammar.GrammarCompiler(INFO)
OTHER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))


def of_jsonschema(schema, text):
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


def of_xgrammar(schema, text):
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_json_schema(json.dumps(schema)), terminate_without_stop_token=True)
    return matcher.accept_string(text) and matcher.is_terminated()


def of_llguidance(schema, text):
    matcher = llguidance.LLMatcher(OTHER, llguidance.LLMatcher.grammar_from_json_schema(schema))
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


EITHER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "anyOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}, {"properties": {"c": {"type": "string"}}, "required": ["c"]}],
}
CASES = [
    ({"type": "string", "maxLength": 30}, r'"two\nlines"', True),
    ({"type": "string", "minLength": 1}, r'"a \"word\""', True),
    ({"type": "string", "pattern": r'^"$'}, r'"\""', True),
    ({"type": "string", "pattern": r'^"$'}, '"""', False),
    ({"type": "string", "pattern": r"^[a-z]:\\$"}, r'"c:\\"', True),
    ({"type": "string", "pattern": r"^[^a]$"}, r'"\""', True),
    (EITHER, '{"a":1,"b":"x"}', True),
    (EITHER, '{"b":"x"}', False),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}, "minimum": 5}, "3", False),
]
as_described = []
for schema, text, valid in CASES:
    answers = [check(schema, text) for check in (of_jsonschema, of_llguidance, of_xgrammar)]
    print(f"{json.dumps(schema)} {text}: jsonschema {answers[0]}, llguidance {answers[1]}, xgrammar {answers[2]}")
    as_described.append(answers == [valid, valid, not valid])
sys.exit(0 if all(as_described) else 1)
PYTHON
