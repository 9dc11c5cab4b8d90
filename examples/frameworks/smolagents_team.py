"""A Solver with a calculator, and a Verifier, in smolagents, which blocks: a plain function."""

import re

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a * b


def team(task, session):
    def model(name):
        # A required tool call would mask tokens, which training refuses.
        return OpenAIModel(name, api_base=session.base_url, api_key=session.api_key, tool_choice="auto")

    solver = ToolCallingAgent([multiply], model("Solver Agent"), max_steps=2, verbosity_level=-1)
    solution = str(solver.run(f"{task.prompt}\nEnd with the final answer alone in \\boxed{{}}."))
    checked = f"Check: {task.prompt}\nSolver: {solution}\nEnd with <verify>approve</verify> or <verify>reject</verify>."
    model("Verifier Agent").generate([{"role": "user", "content": [{"type": "text", "text": checked}]}])
    return (re.findall(r"\\boxed\{([^{}]*)\}", solution) or [solution])[-1]
