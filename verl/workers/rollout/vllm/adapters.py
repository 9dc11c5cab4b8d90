"""LoRA adapters of the `vllm` engine: every version is a folder in PEFT's format, in shared memory,
that vLLM reads.

vLLM keys cached prefixes by an adapter's path, so a new version never uses the keys of an older
one, and no other prefixes are dropped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from verl.models.lora import LoraSpec, adapter_shapes, lora_targets
from verl.workers.rollout.weights import AdapterInbox
from verl.workers.weight_transfer.shared_memory import Spool


class AdapterFolders:
    """The folders of adapters and the `LoRARequest`s that name them.

    Args:
        model: the base; it may be on the meta device.
        specs: by adapter name.
        spool: parent of the folders.

    Raises:
        LoraTargetError: an adapter does not fit the model.
    """

    def __init__(self, model: torch.nn.Module, specs: Mapping[str, LoraSpec], spool: Spool) -> None:
        targets = {name: lora_targets(model, spec) for name, spec in specs.items()}
        self._inbox = AdapterInbox(
            {name: adapter_shapes(targets[name], spec.rank) for name, spec in specs.items()}
        )
        self._configs = {
            name: {
                "peft_type": "LORA",
                "r": spec.rank,
                "lora_alpha": spec.alpha,
                "target_modules": sorted(targets[name]),
                "bias": "none",
            }
            for name, spec in specs.items()
        }
        self._numbers = {name: number for number, name in enumerate(specs, 1)}
        self._spool = spool
        self._count = 0
        self._folders: dict[str, list[Path]] = {name: [] for name in specs}

    def version(self, name: str) -> int:
        """See `AdapterInbox.version`."""
        return self._inbox.version(name)

    def take(self, name: str, tensors: Mapping[str, torch.Tensor], final: bool) -> Any | None:
        """Keep one bucket; with the final one, write the folder and return the vLLM request that
        loads it.

        Raises as `AdapterInbox.take`.
        """
        received = self._inbox.take(name, tensors, final)
        if received is None:
            return None
        self._count += 1
        folder = f"{self._numbers[name]}-{self._count}"
        path = self._spool.write(received, f"{folder}/adapter_model.safetensors").parent
        (path / "adapter_config.json").write_text(json.dumps(self._configs[name]))
        self._folders[name].append(path)
        return self.request(name, replace=True)

    def set_version(self, name: str, version: int) -> None:
        """Set the version after vLLM has read the newest folder. Keep the one before it, for
        waiting requests, and remove older ones.
        """
        self._inbox.set_version(name, version)
        folders = self._folders[name]
        while len(folders) > 2:
            shutil.rmtree(folders.pop(0), ignore_errors=True)

    def withdraw(self, name: str) -> None:
        """Remove the newest folder, after vLLM refused it."""
        shutil.rmtree(self._folders[name].pop(), ignore_errors=True)

    def request(self, name: str | None, replace: bool = False) -> Any | None:
        """Return the `LoRARequest` of an adapter with weights, None for the base; `replace`
        replaces the loaded version.
        """
        if name is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(name, self._numbers[name], str(self._folders[name][-1]), load_inplace=replace)

    def loaded(self) -> list[str]:
        """Return the names of adapters with weights."""
        return [name for name, folders in self._folders.items() if folders]
