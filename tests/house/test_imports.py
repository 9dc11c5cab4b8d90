"""Arrows between modules run downward only, and importing the packages costs torch, numpy, tensordict and
transformers at most.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests.house.source import ROOT, imports, modules, tree

# Commands, and the package that builds a run out of both halves.
TRAINS, SERVES, LAUNCH = "verl.trainer.main_ppo", "agent_system.serve", "agent_system.launch"
# What both halves know: data classes and declarations, without torch where they are of the configuration, and
# the event loop in a thread.
SHARED = ("verl.protocol", "verl.trainer.config", "verl.utils.names", "verl.utils.loop_thread")
# Where names of verl are to be found that only code written for verl uses.
VERLS_PATHS = (
    "verl.protocol", "verl.protocol.data_proto", "verl.single_controller", "verl.single_controller.base",
    "verl.single_controller.base.decorator", "verl.single_controller.base.worker",
    "verl.single_controller.base.worker_group",
    "verl.single_controller.ray.base", "verl.trainer.plan.command_line", "verl.trainer.ppo.core_algos",
    "verl.trainer.ppo.credit.advantage", "verl.trainer.ppo.utils", "verl.trainer.ppo.verl_arguments",
)  # fmt: skip
HEAVY = (
    "ray",
    "vllm",
    "hydra",
    "omegaconf",
    "wandb",
    "pandas",
    "datasets",
    "math_verify",
    "peft",
    "tensorboard",
    "sglang",
)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def test_only_the_entry_point_of_verl_imports_agent_system() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules()
        if within(module, "verl") and module != TRAINS
        for target, line in imports(module)
        if within(target, "agent_system")
    ]
    assert not wrong, f"agent_system is known to {TRAINS} alone; pass what is needed as an argument: {wrong}"


def test_agent_system_knows_nothing_of_verl_but_the_protocol_and_the_configuration() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules()
        if within(module, "agent_system") and not within(module, LAUNCH)
        for target, line in imports(module)
        if within(target, "verl") and not any(within(target, shared) for shared in SHARED)
    ]
    assert not wrong, f"agent_system may import {', '.join(SHARED)} only, outside {LAUNCH}: {wrong}"


def test_the_configuration_is_a_leaf() -> None:
    """`verl.trainer.config` declares keys; what follows from several of them is in `verl.trainer.plan`."""
    below = ("verl.trainer.config", "verl.utils")
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules()
        if within(module, "verl.trainer.config")
        for target, line in imports(module)
        if (within(target, "verl") or within(target, "agent_system"))
        and not any(within(target, package) for package in below)
    ]
    assert not wrong, f"verl.trainer.config may import {', '.join(below)} only: {wrong}"


def test_what_only_verls_users_need_is_known_to_verls_import_paths_alone() -> None:
    users = {module for module in modules() for target, _ in imports(module) if within(target, "verl.compat")}
    assert {module for module in users if not within(module, "verl.compat")} == set(VERLS_PATHS)


def test_nothing_imports_an_entry_point() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module in modules()
        for target, line in imports(module)
        if target in (TRAINS, SERVES)
    ]
    assert not wrong, f"what is started by a user is at the top of the house: {wrong}"


def cycles() -> list[list[str]]:
    """Strongly connected components of two or more modules (Tarjan 1972), and modules that import
    themselves.
    """
    graph = {
        module: sorted({target for target, _ in imports(module) if target in modules()})
        for module in modules()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1 or module in graph[module]:
                found.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_no_import_cycle_not_even_a_lazy_one() -> None:
    assert cycles() == []


def test_every_import_of_our_own_names_a_module_that_exists() -> None:
    missing = [
        f"{module}:{line} imports {target}"
        for module in modules()
        for target, line in imports(module)
        if (within(target, "verl") or within(target, "agent_system")) and target not in modules()
    ]
    assert not missing


def imported_at_once(path: Path) -> set[str]:
    """What the top level of a file imports, by absolute names: of `from a import b`, `a` and `a.b`."""
    found: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_tests_are_collected_without_vllm() -> None:
    """No test's file imports vLLM at once, or a module of ours that does, or one that imports such a
    module.
    """
    needing = {"vllm"}
    graph = {module: imported_at_once(path) for module, path in modules().items()}
    while more := {
        m
        for m, targets in graph.items()
        if m not in needing and any(within(t, "vllm") or t in needing for t in targets)
    }:
        needing |= more
    assert "verl.workers.rollout.vllm.executor" in needing
    files = (ROOT / "tests").rglob("*.py")
    wrong = {
        str(file.relative_to(ROOT)): found
        for file in files
        if (found := sorted(imported_at_once(file) & needing))
    }
    assert not wrong, f"import it in the test: {wrong}"


# What must not be loaded after a statement; those that do without torch first.
NOT_LOADED = {
    "import examples.embedded.prepare as p; p.recipe_hash(p.Recipe())": ("torch",),
    "import agent_system.registry, verl.trainer.plan.checks": ("torch", *HEAVY),
    "import verl.report.cli, verl.report.watch": ("torch", "jinja2", "transformers", "pyarrow", *HEAVY),
    "import verl, agent_system": HEAVY,
    "from verl import DataProto": HEAVY,
    "import agent_system.launch.train": ("transformers", "peft", "vllm", "pandas"),
    "import verl.models.loader": ("transformers",),
}
# Each statement in a process of its own, forked from one that has imported nothing, then from one that has
# imported torch.
EACH = f"""
import os, sys
for statement, names in {NOT_LOADED!r}.items():
    if "torch" not in names:
        import tensordict, torch
    if os.fork() == 0:
        exec(statement)
        print(statement, [name for name in names if name in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""


def test_importing_loads_nothing_heavy() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EACH], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [f"{statement} []" for statement in NOT_LOADED], done.stderr


def test_garbage_is_collected_rarely_unless_the_process_has_chosen_so_itself() -> None:
    for before, after in {
        (700, 10, 10): (50_000, 20, 20),
        (0, 10, 10): (0, 10, 10),
        (90_000, 5, 5): (90_000, 5, 5),
    }.items():
        program = f"import gc; gc.set_threshold(*{before}); import verl; assert gc.get_threshold() == {after}, gc.get_threshold()"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
