"""Names say what a value is, and a public class has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.house.source import ROOT, modules, nodes

# Bare participles say nothing about the value. What is left are fields of classes, module names, and arguments
# of methods whose base class has them; their number only falls.
PARTICIPLES = frozenset(
    {
        "asked", "given", "held", "kept", "known", "made", "own", "found", "played", "seen", "shown", "taken",
        "told", "wanted", "said", "met", "lost", "chosen", "drawn", "sent", "gone", "spent", "tried", "done",
        "served",
    }
)  # fmt: skip
MOST_PARTICIPLES = 16
# Of attributes, fields and functions; some are of the public API (`Outcome.done`) or in checkpoints.
MOST_MEMBERS = 21
# Names that verl's controller has as well.
VERLS = {
    "Worker", "ResourcePool", "RayResourcePool", "SubRayResourcePool", "Dispatch", "RayClassWithInitArgs",
    "RayWorkerGroup",
}  # fmt: skip


def files() -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """The files of the packages, and the nodes of each."""
    for path in modules().values():
        yield str(path.relative_to(ROOT)), nodes(path)


def named_by_participles(name_of: Callable[[ast.AST], str]) -> list[str]:
    return [
        f"{file}:{node.lineno} {name}"
        for file, file_nodes in files()
        for node in file_nodes
        if (name := name_of(node)) and name.strip("_").lower() in PARTICIPLES
    ]


def test_no_name_is_a_participle_alone() -> None:
    """No variable and argument, and no attribute, field and function."""
    variables = named_by_participles(stored_name)
    assert len(variables) <= MOST_PARTICIPLES, variables
    members = named_by_participles(member_name)
    assert len(members) <= MOST_MEMBERS, members


def member_name(node: ast.AST) -> str:
    """The name of an attribute that is set, of a field of a class or of a function."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""


def stored_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def test_a_public_class_has_a_name_of_its_own() -> None:
    places = defaultdict(set)
    for file, file_nodes in files():
        for node in file_nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(file)
    assert {name for name, files in places.items() if len(files) > 1} == VERLS
