"""Time of a weight update from one process to others by each way of sending weights, and of the update of one
adapter.

    python benchmarks/weight_sync.py [--device cpu] [--receivers 2] [--mib 256] [--bucket-mb 64] [--adapter-mib 1] [--rounds 7]

Ray actors make the calls of a training step: buckets are sent one ahead, every receiver copies them into
tensors of its own. With `--device cuda` the tensors are on one GPU that all processes share, and `cuda_ipc`
is measured too; with `--own-gpus` every process has a GPU of its own, and `collective` uses NCCL in place of
gloo. A round measures all ways one after the other, after one update of each without measurement. The last
line is one JSON object: `<way>_s` are seconds of an update of `--mib` MiB, `<way>_adapter_ms` milliseconds of
one of `--adapter-mib` (medians of the rounds), `collective_over_object_store` the median of the rounds'
ratios if both are measured, `spread` the lowest and highest round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
import torch

from benchmarks.shared.device import add_device, check_device, now
from benchmarks.shared.short import parse_args
from verl.single_controller.ray.start import start_private_cluster
from verl.workers.weight_transfer.base import build_transfer

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("object_store", "collective", "shared_memory", "cuda_ipc")
SHARE = 0.01  # of a GPU for each process, all on the only one that Ray knows


@ray.remote(num_cpus=0)
class Process:
    """A sender or a receiver, with parameters of 1 MiB each, float32."""

    def __init__(self, mib: int, device: str) -> None:
        torch.set_num_threads(1)
        self._device = device
        self._transfers = {way: build_transfer(way) for way in WAYS}
        self._parameters = {
            str(index): torch.full((1 << 18,), float(index), device=device) for index in range(mib)
        }

    def send(self, way: str, names: Sequence[str], receivers: int) -> Any:
        """Send parameters and return the handle."""
        transfer = self._transfers[way]
        device = self._device if transfer.on_device else "cpu"
        return transfer.send(
            {name: self._parameters[name].to(device, copy=True) for name in names}, receivers
        )

    def load(self, way: str, handle: Any) -> None:
        """Copy a bucket into the parameters."""
        for name, tensor in self._transfers[way].receive(handle).items():
            self._parameters[name].copy_(tensor)
        now()

    def release(self, way: str, handles: list[Any]) -> None:
        """Free buckets."""
        for handle in handles:
            self._transfers[way].release(handle)


class Team:
    """A sender and its receivers, each with a part of a GPU; 0 is none."""

    def __init__(self, mib: int, device: str, receivers: int, gpu: float) -> None:
        make = Process.options(num_gpus=gpu)  # type: ignore[attr-defined]
        self.sender, *self.receivers = (make.remote(mib, device) for _ in range(1 + receivers))

    def seconds(self, way: str, mib: int, bucket_mb: int) -> float:
        """Send an update of `mib` MiB and return its time."""
        buckets = [
            [str(index) for index in range(first, min(first + bucket_mb, mib))]
            for first in range(0, mib, bucket_mb)
        ]
        start, handles = now(), []
        coming = self.sender.send.remote(way, buckets[0], len(self.receivers))
        for names in [*buckets[1:], None]:
            handles.append(ray.get(coming))
            coming = self.sender.send.remote(way, names, len(self.receivers)) if names else None
            ray.get([receiver.load.remote(way, handles[-1]) for receiver in self.receivers])
        ray.get(self.sender.release.remote(way, handles))
        return now() - start


def parse() -> argparse.Namespace:
    """Return the options; exit with one line where there are fewer GPUs than they need."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_device(parser)
    parser.add_argument("--own-gpus", action="store_true", help="with --device cuda: a GPU for every process")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all, but cuda_ipc only on one GPU")
    parser.add_argument("--receivers", type=int, default=2)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--bucket-mb", type=int, default=64)
    parser.add_argument("--adapter-mib", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parse_args(parser, rounds=3)
    if args.own_gpus and (args.device == "cpu" or "cuda_ipc" in (args.ways or ())):
        sys.exit(
            "--own-gpus needs --device cuda, and --ways without cuda_ipc, by which only processes that share "
            "a GPU can send"
        )
    args.gpus = 0 if args.device == "cpu" else 1 + args.receivers if args.own_gpus else 1
    check_device(args.device, args.gpus)
    args.ways = args.ways or (WAYS if args.device == "cuda" and not args.own_gpus else WAYS[:-1])
    return args


def main() -> None:
    """Measure rounds of all ways and report medians."""
    args = parse()
    found: dict[str, list[float]] = {
        f"{way}{unit}": [] for way in args.ways for unit in ("_s", "_adapter_ms")
    }
    env = {"WG_BACKEND": "ray", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start_private_cluster(num_cpus=2, num_gpus=args.gpus, log_to_driver=False, runtime_env={"env_vars": env})
    team = Team(args.mib, args.device, args.receivers, 1 if args.own_gpus else SHARE * args.gpus)
    for number in range(args.rounds + 1):
        for way in args.ways:
            seconds, adapter_s = (
                team.seconds(way, args.mib, args.bucket_mb),
                team.seconds(way, args.adapter_mib, args.adapter_mib),
            )
            if number:
                found[f"{way}_s"].append(seconds)
                found[f"{way}_adapter_ms"].append(1000 * adapter_s)
    ray.shutdown()
    if {"object_store", "collective"} <= set(args.ways):
        pairs = zip(found["collective_s"], found["object_store_s"], strict=True)
        found["collective_over_object_store"] = [ours / theirs for ours, theirs in pairs]
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    spread = {name: [round(min(values), 3), round(max(values), 3)] for name, values in found.items()}
    sys.stdout.write(json.dumps(medians | {"spread": spread}) + "\n")


if __name__ == "__main__":
    main()
