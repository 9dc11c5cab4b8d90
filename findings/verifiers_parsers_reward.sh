#!/usr/bin/env bash
# verifiers 0.3.1: what its parsers give to rewards is not what they say.
#
# 1. `XMLParser.parse_answer` ("the last answer from a completion") takes the last `<answer>` of a text, and the first one of a chat message:
#    the same reply is right as one and wrong as the other, and an answer that the model tries and gives up in its thinking is graded.
# 2. `XMLParser(extract_fn=...)` never calls the function, so that `\boxed{2}` in the tag is compared with its box.
# 3. The reward for the format is the full 1.0 where `<think>` is never closed, 0.6 for `<think></answer>` alone, 0.2 for an empty reply.
# 4. `MathRubric` at its defaults gives 1.0 for a guess in a thought that the limit cut: without `</think>` all text is the answer.
#
# Output of the last part of this script:
#   the answer of a text 2, of a chat 1
#   with extract_fn=extract_boxed_answer: '\\boxed{2}'
#   reward for the format 1.0: '<think>x</think>\n<answer>2</answer>'
#   reward for the format 1.0: '<think>x\n<answer>2</answer>'
#   reward for the format 0.6: '<think></answer>'
#   reward for the format 0.2: ''
#   MathRubric 1.0: '<think>Perhaps \\boxed{4}, but wait'
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check verifiers==0.3.1 renderers==0.1.12 math-verify==0.9.0
cd "$folder"
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import asyncio
import logging
import os
import sys

logging.disable(logging.CRITICAL)
from verifiers.legacy.parsers.xml_parser import XMLParser
from verifiers.legacy.rubrics.math_rubric import MathRubric
from verifiers.legacy.utils.data_utils import extract_boxed_answer


def chat(text):
    return [{"role": "assistant", "content": text}]


as_described = []
parser = XMLParser(["think", "answer"])
reply = "<think>I try <answer>1</answer>, no</think>\n<answer>2</answer>"
answers = parser.parse_answer(reply), parser.parse_answer(chat(reply))
print(f"the answer of a text {answers[0]}, of a chat {answers[1]}")
as_described.append(answers == ("2", "1"))

boxed = XMLParser(["think", "answer"], extract_fn=extract_boxed_answer)
answer = boxed.parse_answer(chat("<think>x</think>\n<answer>\\boxed{2}</answer>"))
print(f"with extract_fn=extract_boxed_answer: {answer!r}")
as_described.append(answer == "\\boxed{2}")

well_formed = parser.get_format_reward_func()
for text, seen in [
    ("<think>x</think>\n<answer>2</answer>", 1.0),
    ("<think>x\n<answer>2</answer>", 1.0),
    ("<think></answer>", 0.6),
    ("", 0.2),
]:
    reward = round(well_formed(chat(text)), 6)
    print(f"reward for the format {reward}: {text!r}")
    as_described.append(reward == seen)


async def graded(text):
    rubric = MathRubric()
    try:
        return await rubric.correct_answer(rubric.parser, chat(text), "4")
    finally:
        await rubric.teardown()


thought = "<think>Perhaps \\boxed{4}, but wait"
reward = asyncio.run(graded(thought))
print(f"MathRubric {reward}: {thought!r}", flush=True)
as_described.append(reward == 1.0)
os._exit(0 if all(as_described) else 1)  # without waiting for the rubric's pool
PYTHON
