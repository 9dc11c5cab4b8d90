"""The Ray backend: every worker an actor, placed by placement groups, on one node or many. The names of the package itself are verl's."""

from typing import Any


def __getattr__(name: str) -> Any:
    import verl.single_controller.ray.base as verls

    return getattr(verls, name)
