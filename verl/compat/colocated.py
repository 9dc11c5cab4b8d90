"""verl's actor class, and several worker classes in one process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from verl.compat.controller import Worker
from verl.single_controller.ray.actor_class import RayClassWithInitArgs as ActorClass


class RayClassWithInitArgs(ActorClass):
    """A worker class with its constructor arguments and actor options; a call starts one actor."""

    fused_worker_used = False

    def set_additional_resource(self, additional_resource: dict[str, float]) -> None:
        """Request custom Ray resources for every worker."""
        self.update_options({"resources": dict(additional_resource)})

    def __call__(  # type: ignore[override]
        self,
        placement_group: Any,
        placement_group_bundle_idx: int,
        use_gpu: bool = True,
        num_gpus: float = 1,
        *,
        device_name: str = "cuda",
    ) -> Any:
        """Start one actor in a bundle, without a name or rank; `RayWorkerGroup` uses `create`."""
        return self.create(
            placement_group,
            placement_group_bundle_idx,
            None,
            {},
            num_gpus if use_gpu and device_name != "cpu" else 0,
        )


def create_colocated_worker_raw_cls(class_dict: dict[str, RayClassWithInitArgs]) -> type:
    """Return a class with one worker of every given class, each an attribute named by its key.

    Method `m` of the worker under key `k` is the class's method `k_m`; groups of
    `RayWorkerGroup.spawn` have it as `m`.
    """

    class ColocatedWorker(Worker):
        colocated_classes = {key: spec.worker_class for key, spec in class_dict.items()}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            for key, spec in class_dict.items():
                self.fused_worker_dict[key] = plain_class(spec.worker_class)(*spec.args, **spec.kwargs)
                setattr(self, key, self.fused_worker_dict[key])
            for worker in self.fused_worker_dict.values():
                setattr(worker, Worker.fused_worker_attr_name, self.fused_worker_dict)

    for key, spec in class_dict.items():
        for name, method in inspect.getmembers(spec.worker_class, callable):
            if not name.startswith("__"):
                setattr(ColocatedWorker, f"{key}_{name}", _delegate(key, name, method))
    ColocatedWorker.__name__ = ColocatedWorker.__qualname__ = "_".join(["Colocated", *class_dict])
    return ColocatedWorker


def create_colocated_worker_cls(class_dict: dict[str, RayClassWithInitArgs]) -> RayClassWithInitArgs:
    """Return the colocated class of `class_dict` for a `RayWorkerGroup`; actor options of all parts
    are merged.
    """
    colocated = RayClassWithInitArgs(create_colocated_worker_raw_cls(class_dict))
    for spec in class_dict.values():
        colocated.update_options(spec._options)
    return colocated


def create_colocated_worker_cls_fused(class_dict: dict[str, RayClassWithInitArgs]) -> RayClassWithInitArgs:
    """Return the result of `create_colocated_worker_cls` for `RayWorkerGroup.fuse`."""
    colocated = create_colocated_worker_cls(class_dict)
    colocated.fused_worker_used = True
    return colocated


def plain_class(worker_class: type) -> type:
    """Return the user's class, also if Ray has wrapped it in a subclass."""
    base: type = getattr(worker_class, "__ray_actor_class__", worker_class)
    return base


def _delegate(key: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    # a class method: Ray sets attributes of the underlying function
    if inspect.ismethod(method):
        method = method.__func__
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await getattr(getattr(self, key), name)(*args, **kwargs)

        return call_async

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(self, key), name)(*args, **kwargs)

    return call
