"""verl's `RayClassWithInitArgs`: it is called to start an actor."""

from __future__ import annotations

from typing import Any

from verl.single_controller.ray.actor_class import RayClassWithInitArgs as ActorClass


class RayClassWithInitArgs(ActorClass):
    """A worker class with its constructor arguments and actor options; calling it starts one actor."""

    fused_worker_used = False

    def set_additional_resource(self, additional_resource: dict[str, float]) -> None:
        """Ask Ray for custom resources for every worker."""
        self.update_options({"resources": dict(additional_resource)})

    def __call__(  # type: ignore[override]
        self, placement_group: Any, placement_group_bundle_idx: int, use_gpu: bool = True, num_gpus: float = 1, *, device_name: str = "cuda"
    ) -> Any:
        """Start one actor, without a name or a rank of its own, in a bundle; `RayWorkerGroup` uses `create`."""
        return self.create(placement_group, placement_group_bundle_idx, None, {}, num_gpus if use_gpu and device_name != "cpu" else 0)
