"""Time of a weight update from one process to two others by each way of sending weights, and of the update of one adapter.

    python benchmarks/weight_sync.py [--mib 256] [--bucket-mb 64] [--adapter-mib 1] [--rounds 7]

Ray actors make the calls of a training step: buckets are sent one ahead, every receiver copies them into tensors of its own. A round
measures all ways one after the other, after one update of each without measurement. The last line is one JSON object: `<way>_s` are seconds
of an update of `--mib` MiB, `<way>_adapter_ms` milliseconds of one of `--adapter-mib` (medians of the rounds),
`collective_over_object_store` the median of the rounds' ratios, `spread` the lowest and highest round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
import torch

from verl.single_controller.ray.start import start_private_cluster
from verl.workers.weight_transfer.base import build_transfer

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("object_store", "collective", "shared_memory")
RECEIVERS = 2


@ray.remote(num_cpus=0)
class Process:
    """A sender or a receiver, with parameters of 1 MiB each, float32."""

    def __init__(self, mib: int) -> None:
        torch.set_num_threads(1)
        self._transfers = {way: build_transfer(way) for way in WAYS}
        self._parameters = {str(index): torch.full((1 << 18,), float(index)) for index in range(mib)}

    def send(self, way: str, names: Sequence[str]) -> Any:
        """Send parameters and return the handle."""
        return self._transfers[way].send({name: self._parameters[name].clone() for name in names}, RECEIVERS)

    def load(self, way: str, handle: Any) -> None:
        """Copy a bucket into the parameters."""
        for name, tensor in self._transfers[way].receive(handle).items():
            self._parameters[name].copy_(tensor)

    def release(self, way: str, handles: list[Any]) -> None:
        """Free buckets."""
        for handle in handles:
            self._transfers[way].release(handle)


class Team:
    """A sender and its receivers."""

    def __init__(self, mib: int) -> None:
        self.sender = Process.remote(mib)  # type: ignore[attr-defined]
        self.receivers = [Process.remote(mib) for _ in range(RECEIVERS)]  # type: ignore[attr-defined]

    def seconds(self, way: str, mib: int, bucket_mb: int) -> float:
        """Send an update of `mib` MiB and return its time."""
        buckets = [[str(index) for index in range(first, min(first + bucket_mb, mib))] for first in range(0, mib, bucket_mb)]
        start, handles = time.perf_counter(), []
        coming = self.sender.send.remote(way, buckets[0])
        for names in [*buckets[1:], None]:
            handles.append(ray.get(coming))
            coming = self.sender.send.remote(way, names) if names else None
            ray.get([receiver.load.remote(way, handles[-1]) for receiver in self.receivers])
        ray.get(self.sender.release.remote(way, handles))
        return time.perf_counter() - start


def main() -> None:
    """Measure rounds of all ways and report medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--bucket-mb", type=int, default=64)
    parser.add_argument("--adapter-mib", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found: dict[str, list[float]] = {f"{way}{unit}": [] for way in WAYS for unit in ("_s", "_adapter_ms")}
    env = {"WG_BACKEND": "ray", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start_private_cluster(num_cpus=2, log_to_driver=False, runtime_env={"env_vars": env})
    team = Team(args.mib)
    for number in range(args.rounds + 1):
        for way in WAYS:
            seconds, adapter_s = team.seconds(way, args.mib, args.bucket_mb), team.seconds(way, args.adapter_mib, args.adapter_mib)
            if number:
                found[f"{way}_s"].append(seconds)
                found[f"{way}_adapter_ms"].append(1000 * adapter_s)
    ray.shutdown()
    found["collective_over_object_store"] = [
        ours / theirs for ours, theirs in zip(found["collective_s"], found["object_store_s"], strict=True)
    ]
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    spread = {name: [round(min(values), 3), round(max(values), 3)] for name, values in found.items()}
    sys.stdout.write(json.dumps(medians | {"spread": spread}) + "\n")


if __name__ == "__main__":
    main()
