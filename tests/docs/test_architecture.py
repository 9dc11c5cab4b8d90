"""docs/architecture.md names code that exists, and counts the files and lines that it says to read.

A name that is gone is reported with its line, so that whoever moved it can mend the page.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import pages
from tests.docs.test_readme import is_key
from tests.house.source import PACKAGES, ROOT, imports, modules, nodes, tree

PAGE = "docs/architecture.md"
# Code spans that are no names of code: letters of shapes, and values that no constant spells.
NO_NAMES = {"P", "R", "bsz"}
# `12 files, 3,400 lines`: the files that the line names.
COUNT = re.compile(r"\b(\d+) files(?:, ([\d,]+) lines)?")
CORE_ALGOS = "verl.trainer.ppo.core_algos"
# What may import everything.
OF_EVERYTHING = ("agent_system.launch", "agent_system.serve", "verl.trainer.main_ppo")
# Share by which the stated number of lines may differ: the page rounds.
ROUNDING = 0.05


@cache
def members() -> dict[str, set[str]]:
    """Class name to its methods, class attributes and attributes of `self`, over both packages."""
    result = defaultdict[str, set[str]](set)
    for path in modules().values():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                result[node.name] |= set(_members_of(node))
    return result


def _members_of(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        yield from _names_of(statement)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


@cache
def defined() -> set[str]:
    """Names of modules, classes, functions, parameters, variables and attributes, and string constants."""
    names = {part for module in modules() for part in module.split(".")}
    for path in modules().values():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


def exists(span: str, folders: list[Path]) -> bool:
    """Whether what a code span names exists; a path starts at the root or at a folder that the line names."""
    if span.startswith("python "):
        return all(_command_part_exists(word) for word in span.split()[1:])
    if re.search(r"[^\w./-]", span):
        return True  # a formula, a shape or an override, whose keys tests/docs/test_readme.py looks up
    if "/" in span or span.endswith((".py", ".md", ".sh", ".toml")):
        return any((folder / span).exists() for folder in [ROOT, *folders])
    if "." in span:
        return span in modules() or is_key(span) or _attribute_exists(*span.rsplit(".", 1))
    if re.match(r"[A-Z][a-z]\w*$", span):
        return span in members()
    return span in NO_NAMES or span in defined() or is_key(span)


def _command_part_exists(word: str) -> bool:
    if "/" in word:
        return (ROOT / word).exists()
    return word.startswith("-") or word in modules() or not word.startswith(PACKAGES)


def _attribute_exists(owner: str, name: str) -> bool:
    if owner in modules():
        body = tree(modules()[owner]).body
        return any(name in _names_of(node) for node in body)
    return name in members().get(owner.rsplit(".", 1)[-1], set())


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return [
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]


def named_lines(text: str) -> Iterator[tuple[int, str, list[str], list[Path]]]:
    """(number, line, code spans, folders that the line names) of every line."""
    for number, line in enumerate(text.splitlines(), 1):
        spans = re.findall(r"`([^`]+)`", line)
        folders = [ROOT / span for span in spans if "/" in span and (ROOT / span).is_dir()]
        nested = [folder / span for folder in folders for span in spans if (folder / span).is_dir()]
        yield number, line, spans, folders + nested


def unknown_names(text: str) -> list[str]:
    """`page:line: name` of every code span that names nothing."""
    return [
        f"{PAGE}:{number}: `{span}`"
        for number, _, spans, folders in named_lines(text)
        for span in spans
        if not exists(span, folders)
    ]


def wrong_counts(text: str) -> list[str]:
    """`page:line: what it says, what there is` of every count of files or lines that is wrong."""
    wrong = []
    for number, line, spans, folders in named_lines(text):
        for said in COUNT.finditer(line):
            files = _files(spans, folders)
            lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
            stated = int((said[2] or "0").replace(",", ""))
            if len(files) != int(said[1]) or (stated and abs(stated - lines) > ROUNDING * lines):
                wrong.append(f"{PAGE}:{number}: says {said[0]}; it names {len(files)} files, {lines:,} lines")
    return wrong


def wrong_imports(table: str) -> list[str]:
    """Modules that import of the two packages what the column *may import* of their row has not.

    Args:
        table: the page's table of packages. "The above" are the packages of the rows before, with what they
            may import; "the same" is what `agent_system/` may.
    """
    wrong = []
    above: set[str] = set()
    of_agents: set[str] = set()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or "everything" in cells[2] or "beside" in cells[0]:
            continue
        own, allowed = (
            {span.strip("/").replace("/", ".") for span in re.findall(r"`([\w./]+)`", cells[column])}
            for column in (0, 2)
        )
        allowed = {CORE_ALGOS if name == "core_algos" else name for name in own | allowed}
        if "agent_system" in own:
            of_agents = allowed
        allowed |= (above if "the above" in cells[2] else set()) | (
            of_agents if "the same" in cells[2] else set()
        )
        above |= allowed
        wrong += [
            f"{module}:{line_number} imports {target}"
            for module in modules()
            if _within(module, own) and not _within(module, OF_EVERYTHING)
            for target, line_number in imports(module)
            if _within(target, PACKAGES) and not _within(target, allowed)
        ]
    return wrong


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _files(spans: list[str], folders: list[Path]) -> set[Path]:
    """The files of a line. A folder counts with the modules in it unless the line names files of it."""
    files = {
        file
        for span in spans
        if span.endswith(".py")
        for folder in [ROOT, *folders]
        if (file := folder / span).is_file()
    }
    whole = [folder for folder in folders if not any(file.is_relative_to(folder) for file in files)]
    modules_in = (file for folder in whole for file in folder.rglob("*.py") if file.name != "__init__.py")
    return files | set(modules_in)


def test_every_name_of_code_exists() -> None:
    unknown = unknown_names(pages()[PAGE])
    assert not unknown, "these names are gone; write what replaced them:\n" + "\n".join(unknown)


def test_every_count_of_files_is_that_of_the_tree() -> None:
    wrong = wrong_counts(pages()[PAGE])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "`RayPPOTrainer.no_such_method`", "`NoSuchClass`", "`verl.no_such_module`", "`no_such_name_anywhere`",
        "| `verl/trainer/ppo/` | `no_such_file.py` |", "`verl/no_such_folder/`",
        "`python scripts/no_such_script.py`", "`python -m agent_system.no_such_module`",
    ],
)  # fmt: skip
def test_a_name_that_is_gone_is_found(line: str) -> None:
    assert unknown_names(f"# Page\n\n{line}\n") == [f"{PAGE}:3: `{line.split('`')[-2]}`"]


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("`verl/protocol/`: `data_proto.py`, `generate.py`: 2 files", True),
        ("`verl/protocol/`: `data_proto.py`, `generate.py`: 3 files", False),
        ("`verl/protocol/`: `data_proto.py`: 1 files, 9,999 lines", False),
    ],
)
def test_a_wrong_count_is_found(line: str, right: bool) -> None:
    assert (wrong_counts(line) == []) == right


def test_packages_import_what_the_page_says() -> None:
    table = (ROOT / PAGE).read_text(encoding="utf-8").split("\n## Packages\n")[1].split("\n## ")[0]
    assert not wrong_imports(table)
    assert wrong_imports(table.replace("`verl.protocol`, `verl.utils`, `verl.compat`", "`verl.protocol`"))
