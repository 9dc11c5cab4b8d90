#!/usr/bin/env bash
# reasoning-gym 0.1.25: the scorers of these tasks give the full reward, 1.0, to answers that are wrong, so that a policy can be rewarded
# without the skill:
#
#   coin_flip                 "0", whatever the probability asked for: a constant answer earns 1.0 on each item
#   game_of_life_halting      any text: the truth of the texts is compared, and "False" is a text that is not empty
#   gsm_symbolic              the reference with the other sign, and any text whose first number it is
#   puzzle24                  any four numbers in the range whose value is 24 after its fraction is cut off, not those of the question
#   simple_integration,       "Integral(f(x), x)" of the function in the question: the answer is only differentiated again
#   intermediate_integration  (some reference answers are of that form: "-Integral(x**2*cos(x), x) + C")
#   knights_knaves            the reference followed by anything
#
# Output of the last part of this script:
#   coin_flip: '0' instead of '0.109375': 1.0
#   game_of_life_halting: 'False' instead of 'True': 1.0
#   gsm_symbolic: '-57' instead of '57': 1.0
#   puzzle24: '3*8 + 4/5' instead of '1*9*3 - 3': 1.0
#   simple_integration: 'Integral(36*X**8 - 32*X**7 + 1, X)' instead of '4*X**9 - 4*X**8 + X + C': 1.0
#   knights_knaves: 'Aiden is a saint, and Ella is a saint. Or the other way round.' instead of
#     'Aiden is a saint, and Ella is a saint.': 1.0
#   ... (three items of each task)
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check reasoning-gym==0.1.25
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import reasoning_gym


def integral(item):
    return "Integral({integrand}, {variable})".format(**item["metadata"])


WRONG = {
    "coin_flip": lambda item: "0",
    "game_of_life_halting": lambda item: {"True": "False", "False": "True"}[item["answer"]],
    "gsm_symbolic": lambda item: f"-{item['answer']}",
    "puzzle24": lambda item: "3*8 + 4/5",
    "simple_integration": integral,
    "intermediate_integration": integral,
    "knights_knaves": lambda item: f"{item['answer']} Or the other way round.",
}
scores = []
for task, wrong in WRONG.items():
    made = reasoning_gym.create_dataset(task, size=3, seed=7)
    for item in made:
        answer = wrong(item)
        score = made.score_answer(answer, item)
        print(f"{task}: {answer!r} instead of {item['answer']!r}: {score}")
        scores.append(score)
sys.exit(scores != [1.0] * 3 * len(WRONG))
PYTHON
