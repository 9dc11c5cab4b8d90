"""Registries of agents, orchestras and environments, which users extend without an edit in this
repository.

A built-in workflow named `math` is the package `agent_system.workflows.math`, imported when its
name is first looked up. A user's own package registers itself when it is imported: list it in
`agent.plugins`, or declare the entry point group `verl_mas.plugins`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv
from agent_system.errors import AgentSystemError
from agent_system.main_thread import support_main_thread_calls
from agent_system.orchestra import BaseOrchestra
from agent_system.reward.manager import RewardManager
from verl.utils.names import did_you_mean

PLUGIN_GROUP = "verl_mas.plugins"
ANY = "*"
_WORKFLOWS = "agent_system.workflows"

T = TypeVar("T")
C = TypeVar("C", bound=type)


class ClassRegistry(Generic[T]):
    """Classes by name, optionally scoped to an orchestra, so that two can each have a "Verifier
    Agent", and to an environment.
    """

    def __init__(self, kind: str, base: type[T], *, in_workflows: bool = True) -> None:
        """Make an empty registry of subclasses of `base`; `in_workflows`: a built-in workflow may
        register its own, called as itself.
        """
        self.kind = kind
        self.base = base
        self._in_workflows = in_workflows
        self._entries: dict[tuple[str | None, str | None, str], type[T]] = {}

    def register(
        self, name: str, *, orchestra: str | None = None, env: str | None = None
    ) -> Callable[[C], C]:
        """Return a class decorator that registers the class under `name`.

        Args:
            name: the name used in configs; `ANY` matches every name without a class in this scope.
            orchestra: scope; the name is then found only by lookups for that orchestra.
            env: scope; the name is then found only by lookups for that environment, which prefer
                it.

        Raises:
            AgentSystemError: the name is taken in this scope, or the class does not derive from the
                registry's base.
        """

        def decorate(cls: C) -> C:
            if not (isinstance(cls, type) and issubclass(cls, self.base)):
                raise AgentSystemError(
                    f"{self.kind} {name!r}: {cls!r} must be a subclass of {self.base.__name__}"
                )
            registered_class = self._entries.get((orchestra, env, name))
            if registered_class is not None and registered_class is not cls:
                scope = _scope(orchestra, env)
                raise AgentSystemError(
                    f"{self.kind} {name!r}{scope} is already registered by "
                    f"{registered_class.__module__}.{registered_class.__qualname__}; choose "
                    f"another name{'' if orchestra else ' or scope it: register(name, orchestra=...)'}"
                )
            self._entries[(orchestra, env, name)] = cls
            return cast(C, cls)

        return decorate

    def get(self, name: str, *, orchestra: str | None = None, env: str | None = None) -> type[T]:
        """Return the class of `name`: scoped to `orchestra` and `env`, else to `orchestra`, else
        unscoped, else `ANY` of the orchestra.

        Raises:
            AgentSystemError: the name is not registered; the message lists the registered names and
                the nearest one.
        """
        if self._in_workflows:
            import_workflow(orchestra or name)
            if env is not None:
                import_workflow(env)
        for place in (
            (orchestra, env, name),
            (orchestra, None, name),
            (None, None, name),
            (orchestra, None, ANY),
        ):
            if place in self._entries:
                return self._entries[place]
        if self._in_workflows and orchestra is None:
            _import_all_workflows()
        known_names = self.names(orchestra=orchestra, env=env)
        elsewhere = sorted({str(s) for s, _, n in self._entries if n == name and s is not None} - {orchestra})
        hint = (
            f" (it exists in the scope of orchestra {', '.join(elsewhere)})"
            if elsewhere
            else did_you_mean(name, known_names)
        )
        raise AgentSystemError(
            f"no {self.kind} named {name!r}{_scope(orchestra, env, 'for')}{hint}; "
            f"known: {', '.join(known_names) or 'none'}. A module of your own must be imported "
            "first: agent.plugins=[your.module]"
        )

    def names(self, *, orchestra: str | None = None, env: str | None = None) -> list[str]:
        """Return the names that a lookup for `orchestra` and `env` can find, sorted."""
        return sorted(
            {n for s, e, n in self._entries if n != ANY and e in (None, env) and s in (None, orchestra)}
        )

    def remove(self, name: str, *, orchestra: str | None = None, env: str | None = None) -> None:
        """Remove one entry, so that a notebook or a test can register the name again."""
        self._entries.pop((orchestra, env, name), None)


def _scope(orchestra: str | None, env: str | None, word: str = "of") -> str:
    """Return a scope for messages."""
    return (f" {word} orchestra {orchestra!r}" if orchestra else "") + (
        f" in environment {env!r}" if env else ""
    )


AgentRegistry: ClassRegistry[BaseAgent] = ClassRegistry("agent", BaseAgent)
OrchestraRegistry: ClassRegistry[BaseOrchestra] = ClassRegistry("orchestra", BaseOrchestra)
EnvRegistry: ClassRegistry[BaseEnv] = ClassRegistry("environment", BaseEnv)
RewardManagerRegistry: ClassRegistry[RewardManager] = ClassRegistry(
    "reward manager", RewardManager, in_workflows=False
)


def make_team(
    orchestra_type: str, env_name: str, agent_ids: Iterable[str], options: Mapping[str, Any] | None
) -> tuple[BaseOrchestra, dict[str, BaseAgent]]:
    """Return the orchestra, and the agents that it describes or, else, whose classes are registered.

    Raises AgentSystemError for an unknown name or option.
    """
    orchestra = OrchestraRegistry.get(orchestra_type, env=env_name).from_options(options, orchestra_type)
    agents = {
        name: orchestra.make_agent(name, env_name)
        or AgentRegistry.get(name, orchestra=orchestra_type, env=env_name)(name, orchestra.config)
        for name in agent_ids
    }
    return orchestra, agents


def built_in_workflows() -> list[str]:
    """Return the names of the built-in workflow packages, imported or not."""
    package = importlib.import_module(_WORKFLOWS)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.ispkg)


def import_workflow(name: str) -> bool:
    """Import the built-in workflow package called `name`; return whether there is one."""
    module = f"{_WORKFLOWS}.{name}"
    if not name.isidentifier() or importlib.util.find_spec(module) is None:
        return False
    importlib.import_module(module)
    return True


def _import_all_workflows() -> None:
    """Register what the built-in workflows have, for a message; one whose packages are not installed
    is left out.
    """
    package = importlib.import_module(_WORKFLOWS)
    for module in pkgutil.iter_modules(package.__path__):
        with suppress(ImportError):
            import_workflow(module.name)


def load_plugins(modules: Iterable[str] = ()) -> list[str]:
    """Import `modules` and every installed entry point of the group `verl_mas.plugins`; return the
    names of all these modules.

    Raises:
        AgentSystemError: a module named in `modules`, or one that it imports, does not exist or is
            not Python.
    """
    # before a module binds functions of `signal`
    support_main_thread_calls()
    loaded = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                raise AgentSystemError(
                    f"agent.plugins: {module!r} imports what is not installed: {error}"
                ) from error
            raise AgentSystemError(
                f"agent.plugins names the module {module!r}, which Python cannot find; install the "
                "package or add its folder to PYTHONPATH"
            ) from error
        except SyntaxError as error:
            place = f"{error.filename}, line {error.lineno}"
            raise AgentSystemError(
                f"agent.plugins: {module!r} is not Python: {place}: {error.msg}"
            ) from error
        loaded.append(module)
    for entry in entry_points(group=PLUGIN_GROUP):
        entry.load()
        loaded.append(entry.module)
    return list(dict.fromkeys(loaded))
