"""Names say what a value is, and a public class has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

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
MOST_PARTICIPLES = 24
# Names that verl's controller has as well.
VERLS = {
    "Worker", "ResourcePool", "RayResourcePool", "SubRayResourcePool", "Dispatch", "RayClassWithInitArgs",
    "RayWorkerGroup",
}  # fmt: skip


def files() -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """The files of the packages, and the nodes of each."""
    for path in modules().values():
        yield str(path.relative_to(ROOT)), nodes(path)


def test_no_variable_is_named_by_a_participle_alone() -> None:
    left = [
        f"{file}:{node.lineno} {name}"
        for file, file_nodes in files()
        for node in file_nodes
        if (name := stored_name(node)) and name.strip("_").lower() in PARTICIPLES
    ]
    assert len(left) <= MOST_PARTICIPLES, left


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
