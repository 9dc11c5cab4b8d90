"""A Writer and an Editor with typed fields, which DSPy reads from the text of a reply, and asks for as JSON
where it cannot.
"""

import json
import os
import sys

import dspy


class Edit(dspy.Signature):
    """You edit."""

    draft: str = dspy.InputField()
    ok: bool = dspy.OutputField()
    note: str = dspy.OutputField()


def model(name: str) -> dspy.LM:
    return dspy.LM(f"openai/{name}", api_base=os.environ["OPENAI_BASE_URL"], cache=False)


prompt = json.load(sys.stdin)["prompt"]
with dspy.context(lm=model("Solver Agent")):
    draft = dspy.Predict("question -> draft")(question=prompt).draft
with dspy.context(lm=model("Verifier Agent")):
    verdict = dspy.Predict(Edit)(draft=draft)
print(json.dumps(f"{verdict.ok} {verdict.note}"))
