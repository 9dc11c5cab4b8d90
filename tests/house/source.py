"""The source tree as the house tests see it: modules, their imports, their names."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("verl", "agent_system")


@cache
def modules() -> dict[str, Path]:
    """Dotted module name to file, for every module of the two packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the parsed file, as `ast.walk` yields them."""
    return tuple(ast.walk(tree(path)))


def absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    """The module that a `from` import names, relative dots resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def imports(module: str) -> Iterator[tuple[str, int]]:
    """(imported module, line) of every import in the file, those inside functions and TYPE_CHECKING blocks
    included.

    `from a import b` is an import of `a.b` when that is a module, else of `a`.
    """
    path = modules()[module]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, path, node)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule if submodule in modules() else source), node.lineno
