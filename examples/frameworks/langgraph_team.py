"""A Solver and a Verifier in LangGraph: a solution that is rejected goes back to the Solver, once."""

import re
from operator import add
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph


class Discussion(TypedDict):
    problem: str
    replies: Annotated[list[str], add]


def build(solver, verifier):
    """Return the graph of two chat models."""

    async def solve(state):
        reply = await solver.ainvoke(f"Solve: {state['problem']}{''.join(state['replies'])}")
        return {"replies": [f"\nSolver: {reply.content.strip()}"]}

    async def verify(state):
        reply = await verifier.ainvoke(f"Check: {state['problem']}{''.join(state['replies'])}")
        return {"replies": [f"\nVerifier: {reply.content.strip()}"]}

    graph = StateGraph(Discussion)
    graph.add_node("solve", solve)
    graph.add_node("verify", verify)
    graph.add_edge(START, "solve")
    graph.add_conditional_edges("solve", lambda state: "verify" if len(state["replies"]) == 1 else END)
    graph.add_conditional_edges(
        "verify", lambda state: END if "<verify>approve</verify>" in state["replies"][-1] else "solve"
    )
    return graph.compile()


async def team(task, session):
    graph = build(session.chat_model("Solver Agent"), session.chat_model("Verifier Agent"))
    found = await graph.ainvoke({"problem": task.prompt, "replies": []})
    solution = [reply for reply in found["replies"] if reply.startswith("\nSolver")][-1]
    return (re.findall(r"\\boxed\{([^{}]*)\}", solution) or [""])[-1]
