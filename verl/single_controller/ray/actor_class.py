"""A worker class to be run as a Ray actor."""

from __future__ import annotations

import inspect
from typing import Any

import ray
from ray.actor import ActorClass
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl.single_controller.worker_group import ClassWithInitArgs


class RayClassWithInitArgs(ClassWithInitArgs):
    """A worker class, plain or decorated with `ray.remote`, with its constructor arguments and
    actor options.

    `update_options({"max_concurrency": 64})` lets an actor with `async def` methods serve that many
    concurrent calls.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
        self._options: dict[str, Any] = {}

    @property
    def worker_class(self) -> type:
        """The plain class, without Ray's decoration."""
        if isinstance(self.cls, ActorClass):
            modified: type = self.cls.__ray_metadata__.modified_class  # type: ignore[attr-defined]
            return modified
        assert inspect.isclass(self.cls), (
            f"cls must be a class or a ray actor class, got {type(self.cls).__name__}"
        )
        return self.cls

    def update_options(self, options: dict[str, Any]) -> None:
        """Set options of the actor, such as `max_concurrency`, `runtime_env` or `lifetime`."""
        self._options.update(options)

    def create(
        self, placement_group: Any, bundle: int, name: str | None, env_vars: dict[str, str], num_gpus: float
    ) -> Any:
        """Start one actor in a bundle and return its handle; `env_vars` override those of the
        `runtime_env` option.
        """
        actor_class = self.cls if isinstance(self.cls, ActorClass) else ray.remote(self.cls)
        runtime_env = dict(self._options.get("runtime_env") or {})
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **env_vars}
        options: dict[str, Any] = {"num_cpus": 0, **self._options}
        options |= {
            "runtime_env": runtime_env,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group, placement_group_bundle_index=bundle
            ),
        }
        if name is not None:
            options["name"] = name
        if num_gpus:
            options["num_gpus"] = num_gpus
        return actor_class.options(**options).remote(*self.args, **self.kwargs)
