#!/usr/bin/env bash
# outlines-core 0.2.14 (the backend `outlines` of vLLM 0.32 and of the library outlines): what its `Index` lets a model write is not what
# the regular expression or the JSON schema says.
#
# 1. Where a text is complete but may go on by more than one byte, the step into the middle is lost: `a(bc)?` allows "a", and "abc" only to
#    a vocabulary that has "bc" or "abc" as one token. So a model whose tokens are "." and single digits, as Qwen's, can write no fraction
#    for `[0-9]+(\.[0-9]+)?`. The states behind exist, but nothing leads to them.
# 2. Of alternatives the first that is complete ends the text: `{"enum": [1, 10]}` allows no 10, `{"enum": [10, 1]}` both.
# 3. A property without a type is an alternative without brackets in the expression, so that it divides the whole of it:
#    `{"type": "object", "properties": {"a": {}}, "required": ["a"]}` allows `null`, `3` and `{"a":true` without its end, and no object.
# 4. `minimum`, `multipleOf` and others are left out without a word.
#
# Output of the last part of this script (whether the text can be written and ended there):
#   a(bc)? 'a' True, 'abc' False
#     with the token 'bc' 'abc' True
#   [0-9]+(\.[0-9]+)? '15' True, '1.5' False
#   {"enum": [1, 10]} '1' True, '10' False
#   {"enum": [10, 1]} '1' True, '10' True
#   {"type": "object", "properties": {"a": {}}, "required": ["a"]} 'null' True, '{"a":true' True, '{"a":true}' False
#   {"type": "integer", "minimum": 5} '-4' True
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re
import sys

from outlines_core import Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

END = 999
BYTES = [bytes([value]) for value in range(256)]


def can_write(expression, text, words=()):
    """Whether some way to divide the text into tokens is allowed and may end behind it."""
    tokens = [*BYTES, *words]
    index = Index(expression, Vocabulary(END, {token: [number] for number, token in enumerate(tokens)}))
    data = text.encode()
    reached = {(0, index.get_initial_state())}
    agenda = list(reached)
    while agenda:
        start, state = agenda.pop()
        for number, token in enumerate(tokens):
            after = index.get_next_state(state, number) if data.startswith(token, start) else None
            if after is not None and (start + len(token), after) not in reached:
                reached.add((start + len(token), after))
                agenda.append((start + len(token), after))
    return any(start == len(data) and index.is_final_state(state) for start, state in reached)


seen = []


def report(name, expression, *texts):
    answers = [can_write(expression, text) for text in texts]
    print(name, ", ".join(f"{text!r} {answer}" for text, answer in zip(texts, answers)))
    seen.append(answers)


report("a(bc)?", "a(bc)?", "a", "abc")
seen.append([can_write("a(bc)?", "abc", [b"bc"])])
print("  with the token 'bc' 'abc'", *seen[-1])
NUMBER = r"[0-9]+(\.[0-9]+)?"
report(NUMBER, NUMBER, "15", "1.5")
UNTYPED = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
for schema, texts in [
    ({"enum": [1, 10]}, ["1", "10"]),
    ({"enum": [10, 1]}, ["1", "10"]),
    (UNTYPED, ["null", '{"a":true', '{"a":true}']),
    ({"type": "integer", "minimum": 5}, ["-4"]),
]:
    report(json.dumps(schema), build_regex_from_schema(json.dumps(schema)), *texts)
matched = [bool(re.fullmatch(NUMBER, "1.5")), bool(re.fullmatch("a(bc)?", "abc"))]
sys.exit(seen != [[True, False], [True], [True, False], [True, False], [True, True], [True, True, False], [True]] or not all(matched))
PYTHON
