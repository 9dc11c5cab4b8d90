"""The Ray backend: every worker is an actor in a placement group, on one or several nodes. Names of
the package itself are verl's.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import verl.single_controller.ray.base as base_path

    return getattr(base_path, name)
