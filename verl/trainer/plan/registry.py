"""Registries of advantage estimators and policy losses: functions by name, with the traits that
other parts of the trainer read.

A file of `core_algos` is imported, which registers its functions, when the first of them is asked
for: it imports torch, which takes seconds. Keys are checked before, so traits and parameters of
functions that are not registered yet are read from the decorators and signatures in the source of
`core_algos`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from verl.trainer.config.names import ESTIMATOR_NAMES, POLICY_LOSS_NAMES

Fn = TypeVar("Fn", bound=Callable[..., Any])


@dataclass(frozen=True)
class EstimatorTraits:
    """Properties of an advantage estimator beside its parameters; the defaults suit estimators that
    declare nothing.

    Attributes:
        reads: keys and sections of `algorithm` that have an effect only with an estimator that
            reads them;
            None: it may read any.
        grouped: rows are compared with their group, so that advantages in a group of equal rewards
            are 0.
        whole_batch: an advantage depends on the rows of all groups, as with whitening.
        checks_rewards: it raises ValueError for non-finite rewards, so that no other check is
            needed.
        learns_from: signal beside the reward of a sample, for messages.
        follows_calls: use of an episode's sequence of calls, which single steps of a tree do not
            form, as the verb of a message.
        weighs_calls_by: key of `algorithm` that weights an agent's calls instead of
            `call_weighting`.
        cannot_weigh: use of calls that excludes weights, unless trajectories are averaged first, as
            the verb of a message.
        units: for an estimator that compares neither rows nor trajectories, a function of the
            settings and of the group, episode and agent of each row, `[bsz]`, that returns the
            group and the compared unit of each row, `[bsz]`.
    """

    reads: Sequence[str] | None = None
    grouped: bool = True
    whole_batch: bool = False
    checks_rewards: bool = False
    learns_from: str = ""
    follows_calls: str = ""
    weighs_calls_by: str = ""
    cannot_weigh: str = ""
    units: Callable[..., Any] | None = None


@dataclass(frozen=True)
class LossTraits:
    """Properties of a policy loss; the defaults suit losses that declare nothing.

    Attributes:
        reads: keys of `actor_rollout_ref.actor` that have an effect only with a loss that reads
            them; None: it may read any.
        positive: those of them that must be positive.
        averages: fixed aggregation of token losses; empty: by `loss_agg_mode`.
        uses_every_row: rows with advantage 0 have a gradient, or count in a selection from the
            whole mini-batch.
    """

    reads: Sequence[str] | None = None
    positive: Sequence[str] = ()
    averages: str = ""
    uses_every_row: bool = False


Traits = TypeVar("Traits", EstimatorTraits, LossTraits)
CORE_ALGOS = "verl.trainer.ppo.core_algos"


class Parameters(NamedTuple):
    """Parameters of a function that can be passed by name; `required` is True for those without a
    default.
    """

    required: Mapping[str, bool]
    any_keyword: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Return the parameters of a function."""
        parameters = inspect.signature(function).parameters.values()
        named = {
            p.name: p.default is p.empty
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        return cls(named, any(p.kind is p.VAR_KEYWORD for p in parameters))

    @classmethod
    def from_ast(cls, arguments: ast.arguments) -> Parameters:
        """Return the parameters of a function in a source file."""
        positional = [*arguments.posonlyargs, *arguments.args]
        without = len(positional) - len(arguments.defaults)
        named = {p.arg: i < without for i, p in enumerate(positional) if p not in arguments.posonlyargs}
        named |= {
            p.arg: default is None
            for p, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        }
        return cls(named, arguments.kwarg is not None)


@dataclass(frozen=True)
class Declaration:
    """A registered function as the source of `core_algos` declares it.

    Attributes:
        decorator: name of the function that registers it.
        names: its name and aliases.
        traits: fields of its traits.
        parameters: its parameters.
        module: the file, as a module.
    """

    decorator: str
    names: Sequence[str]
    traits: Mapping[str, Any]
    parameters: Parameters
    module: str


class Registry(Generic[Traits]):
    """Functions of one kind by name.

    Args:
        kind: their name in messages.
        decorator: name of the function that registers them.
        traits: class of their traits.
    """

    def __init__(self, kind: str, decorator: str, traits: type[Traits]) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self._kind = kind
        self._decorator = decorator
        self._type = traits
        self._declared_traits: dict[str, tuple[Callable[..., Any], Traits]] = {}
        self._inspected: dict[str, tuple[Callable[..., Any], Parameters]] = {}

    def register(self, names: Sequence[str | Enum], traits: Mapping[str, Any]) -> Callable[[Fn], Fn]:
        """Return the decorator that registers a function; it raises ValueError if another function
        has one of the names.
        """
        function_traits = self._type(**traits)

        def decorator(function: Fn) -> Fn:
            for name in map(plain_name, names):
                other_function = self.functions.get(name)
                if other_function is None and not function.__module__.startswith(f"{CORE_ALGOS}."):
                    other_function = self.load(name)
                if other_function is not None and other_function != function:
                    raise ValueError(
                        f"{self._kind} '{name}' is already registered as "
                        f"{other_function.__module__}.{other_function.__qualname__}; choose "
                        "another name"
                    )
                self.functions[name], self._declared_traits[name] = function, (function, function_traits)
            return function

        return decorator

    def names(self) -> list[str]:
        """Return all known names, sorted."""
        return sorted({*self.functions, *self._in_source})

    def function(self, name: str | Enum) -> Callable[..., Any]:
        """Return the function registered under a name; raises ValueError listing the known ones."""
        function = self.load(name)
        if function is None:
            raise self._unknown(name, self.names())
        return function

    def load(self, name: str | Enum) -> Callable[..., Any] | None:
        """Return the function with a name, after the import of its file of `core_algos`; None if
        there is none.
        """
        name = plain_name(name)
        if name not in self.functions and name in self._in_source:
            import_module(self._in_source[name].module)
        return self.functions.get(name)

    def traits(self, name: str | Enum) -> Traits:
        """Return the traits of a function; defaults for one that was added to `functions` directly.

        Raises ValueError for an unknown name.
        """
        name = plain_name(name)
        function = self.functions.get(name)
        entry = self._declared_traits.get(name)
        if function is None:
            return self._type(**self._declared(name).traits)
        return entry[1] if entry is not None and entry[0] is function else self._type()

    def reads(self, name: str | Enum, key: str) -> bool:
        """Return whether a function reads a key, declared by name or by section; True for one that
        declares nothing.
        """
        read_keys = self.traits(name).reads
        return read_keys is None or any(f"{key}.".startswith(f"{read}.") for read in read_keys)

    def readers(self, key: str) -> list[str]:
        """Return the names of the functions that declare to read a key."""
        return [
            name for name in self.names() if self.traits(name).reads is not None and self.reads(name, key)
        ]

    def parameters(self, name: str | Enum) -> Parameters:
        """Return the parameters of a function. Raises ValueError for an unknown name."""
        name = plain_name(name)
        function = self.functions.get(name)
        if function is None:
            return self._declared(name).parameters
        # The checks and every step ask many times, and a signature takes 0.1 ms; another function may
        # have been put under the name.
        if name not in self._inspected or self._inspected[name][0] is not function:
            self._inspected[name] = (function, Parameters.of(function))
        return self._inspected[name][1]

    def _declared(self, name: str) -> Declaration:
        if name not in self._in_source:
            raise self._unknown(name, self.names())
        return self._in_source[name]

    def _unknown(self, name: str | Enum, names: Iterable[str]) -> ValueError:
        return ValueError(f"unknown {self._kind} '{plain_name(name)}'; registered are {sorted(names)}")

    @cached_property
    def _in_source(self) -> dict[str, Declaration]:
        """The functions of `core_algos` by name, as its source declares them."""
        return {
            name: declared
            for declared in _decorated()
            if declared.decorator == self._decorator
            for name in declared.names
        }


@cache
def _decorated() -> list[Declaration]:
    """Return every registered function of `core_algos`."""
    folder = Path(__file__).parents[1] / "ppo" / "core_algos"
    declared: list[Declaration] = []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((CORE_ALGOS, *file.relative_to(folder).with_suffix("").parts))
        declared += _decorated_in(file.read_text(encoding="utf-8"), module)
    return declared


def _decorated_in(source: str, module: str) -> Iterator[Declaration]:
    """Yield the registered functions of one source file. A trait that is a function imports the
    file when it is called.
    """
    functions = (
        [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        if "@register_" in source
        else []
    )
    for function in functions:
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                names = [ast.literal_eval(name) for name in call.args]
                traits = {
                    str(k.arg): partial(_call, module, k.value.id)
                    if isinstance(k.value, ast.Name)
                    else ast.literal_eval(k.value)
                    for k in call.keywords
                }
                yield Declaration(call.func.id, names, traits, Parameters.from_ast(function.args), module)


def _call(module: str, name: str, *args: Any) -> Any:
    """Return the result of a function of a module that is imported for it."""
    return getattr(import_module(module), name)(*args)


ESTIMATORS = Registry("advantage estimator", "register_adv_est", EstimatorTraits)
POLICY_LOSSES = Registry("policy loss", "register_policy_loss", LossTraits)
ESTIMATOR_NAMES.listed = ESTIMATORS.names
POLICY_LOSS_NAMES.listed = POLICY_LOSSES.names
# verl's names of the two; functions added to them directly are known as well.
ADV_ESTIMATOR_REGISTRY = ESTIMATORS.functions
POLICY_LOSS_REGISTRY = POLICY_LOSSES.functions


class AdvantageEstimator(StrEnum):
    """verl's names of its advantage estimators; others need only a name registered with
    `register_adv_est`.
    """

    GAE = "gae"
    GDPO = "gdpo"
    GPG = "gpg"
    GRPO = "grpo"
    GRPO_PASSK = "grpo_passk"
    GRPO_VECTORIZED = "grpo_vectorized"
    OPO = "opo"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    RLOO_VECTORIZED = "rloo_vectorized"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"


def plain_name(name: str | Enum) -> str:
    """Return a name as a string."""
    return str(name.value) if isinstance(name, Enum) else name


def register_adv_est(name_or_enum: str | Enum, *aliases: str, **traits: Any) -> Callable[[Fn], Fn]:
    """Register an advantage estimator; raises ValueError if another function has one of the names.

    Args:
        name_or_enum: its name in `algorithm.adv_estimator`.
        *aliases: further names.
        **traits: fields of `EstimatorTraits`, as literals if they are needed before torch is
            imported.
    """
    return ESTIMATORS.register((name_or_enum, *aliases), traits)


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., Any]:
    """Return the estimator registered under a name; raises ValueError listing the known ones."""
    return ESTIMATORS.function(name_or_enum)


def register_policy_loss(name: str, *aliases: str, **traits: Any) -> Callable[[Fn], Fn]:
    """Register a policy loss; raises ValueError if another function has one of the names.

    Args:
        name: its name in `actor_rollout_ref.actor.policy_loss.loss_mode`.
        *aliases: further names.
        **traits: fields of `LossTraits`, as literals if they are needed before torch is imported.
    """
    return POLICY_LOSSES.register((name, *aliases), traits)


def get_policy_loss_fn(name: str) -> Callable[..., Any]:
    """Return the policy loss registered under a name; raises ValueError listing the known ones."""
    return POLICY_LOSSES.function(name)


def estimator_takes(name: str | Enum, parameter: str) -> bool:
    """Return whether an estimator has a parameter of that name; raises ValueError for an unknown
    estimator.
    """
    return parameter in ESTIMATORS.parameters(name).required


def estimator_needs(name: str | Enum, parameter: str) -> bool:
    """Return whether an estimator has a parameter of that name without a default; raises ValueError
    for an unknown estimator.
    """
    return ESTIMATORS.parameters(name).required.get(parameter, False)
