"""A configuration key exists because something reads it, and its page says what the code says."""

import ast
import subprocess
import sys
from dataclasses import is_dataclass
from typing import Any

from tests.house.source import ROOT, modules, tree
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys

PASS_THROUGH = ("asdict", "vars")
# Modules that declare keys, set them, or check whether they fit together: none of this gives a key a meaning.
NO_READERS = (
    "verl.trainer.config",
    "verl.trainer.plan.check_keys",
    "verl.trainer.plan.checks",
    "verl.trainer.plan.command_line",
    "verl.trainer.plan.effects",
    "verl.trainer.plan.group_checks",
    "verl.trainer.plan.presets",
    "verl.trainer.plan.transfer_check",
)
LEAVES = [name.rpartition(".")[2] for name in keys(RunConfig)]


def section_class(section: str) -> str:
    """Name of the dataclass that holds the keys of a dotted section."""
    value: Any = RunConfig()
    for part in section.split(".") if section else []:
        value = getattr(value, part)
    assert is_dataclass(value), section
    return type(value).__name__


class Reads(ast.NodeVisitor):
    """What one file reads: attribute names, every name it uses, and sections it hands on whole."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.names: set[str] = set()
        self.whole: set[str] = set()
        self.of_config: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.attributes.add(node.attr)
            if isinstance(node.value, ast.Name) and node.value.id == "config":
                self.of_config.add(node.attr)
        self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_arg(self, node: ast.arg) -> None:
        self.names.add(node.arg)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.names.add(node.name)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in PASS_THROUGH and node.args:
            argument = node.args[0]
            self.whole.add(
                argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
            )
        if called == "own_key" and isinstance(node.args[1], ast.Constant):
            key = str(node.args[1].value)
            self.attributes.add(key)
            self.names.add(key)
            if getattr(node.args[0], "id", "") == "config":
                self.of_config.add(key)
        self.generic_visit(node)


def readers() -> dict[str, Reads]:
    """The reads of every module outside the configuration itself and its checks."""
    found = {}
    for module, path in modules().items():
        if not module.startswith(NO_READERS):
            found[module] = Reads()
            found[module].visit(tree(path))
    return found


def is_read(name: str, by: dict[str, Reads]) -> bool:
    """A file that knows the section (by its name or its class) reads the key, or hands the section on whole.

    Losses take their section as `config`, of any class: there a key whose last name no other section has is
    told by that name.
    """
    section, _, leaf = name.rpartition(".")
    if LEAVES.count(leaf) == 1 and any(leaf in reads.of_config for reads in by.values()):
        return True
    known_as = {section.rpartition(".")[2], section_class(section)}
    return any(
        (leaf in reads.attributes and known_as & reads.names) or (known_as & reads.whole)
        for reads in by.values()
    )


def test_every_key_is_read_somewhere() -> None:
    by = readers()
    unread = [name for name in keys(RunConfig) if not is_read(name, by)]
    assert not unread, f"read nowhere, so setting them does nothing: {unread}; read them or remove them"


def test_every_key_says_what_it_means() -> None:
    assert [name for name, key in keys(RunConfig).items() if len(key.meaning) < 4] == []


def test_a_key_of_an_optional_part_has_no_effect_without_it() -> None:
    free = [name for name, key in keys(RunConfig).items() if key.part and not key.effect]
    # whether programs are run is known when the environment and the tools are
    assert {name.partition(".")[0] for name in free} == {"sandbox"}


def test_the_page_of_the_configuration_is_up_to_date() -> None:
    result = subprocess.run([sys.executable, "scripts/gen_config_docs.py", "--check"], cwd=ROOT, timeout=240)
    assert result.returncode == 0, "docs/config.md is out of date; run: python scripts/gen_config_docs.py"
