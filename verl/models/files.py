"""Whether the files of a model folder hold the model of its config.json; nothing but the headers of
its weights is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.models.loader import ModelPathError, check_causal_lm, check_missing, count_of, reading_model

# Endings of weights that other frameworks or programs read.
OTHER_FORMATS = {
    ".h5": "TensorFlow", ".msgpack": "Flax", ".gguf": "llama.cpp", ".onnx": "ONNX",
    ".pth": "a format of the model's authors",
    ".nemo": "NeMo", ".mlpackage": "Core ML", ".npz": "NumPy",
}  # fmt: skip


def check_files(path: str, *, trust_remote_code: bool = False) -> None:
    """Check that the weights of a model folder are there and have the names and shapes that its
    configuration asks for.

    A hub id is not checked: its files are checked when they are loaded.

    Raises:
        ModelPathError: weights of another framework, missing or damaged files, or tensors that
            contradict the configuration.
    """
    config = check_causal_lm(path, trust_remote_code=trust_remote_code)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return
    names = [file.name for file in folder.iterdir() if file.is_file()]
    if not any(name.endswith((".safetensors", ".bin", ".index.json")) for name in names):
        raise ModelPathError(_no_weights(path, names))
    report = _loading_report(str(folder), config, trust_remote_code)
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        name, in_file, expected = mismatched[0]
        raise ModelPathError(
            f"the files of model {path!r} contradict its config.json in "
            f"{count_of(mismatched)}: {name} has the shape {tuple(in_file)}, the "
            f"configuration asks for {tuple(expected)}; correct config.json, or give the folder of "
            "this configuration"
        )
    check_missing(path, report["missing_keys"])


def _no_weights(path: str, names: list[str]) -> str:
    for ending, framework in OTHER_FORMATS.items():
        example = next((name for name in sorted(names) if name.endswith(ending)), None)
        if example is not None:
            return (
                f"model {path!r} has weights of {framework} ({example}) and none that transformers "
                "reads; convert them to safetensors, or give the folder of a copy in that format"
            )
    return f"model {path!r} has no weights; expected model.safetensors, shards with an index, or pytorch_model.bin beside config.json"


def _loading_report(folder: str, config: Any, trust_remote_code: bool) -> Any:
    """Return transformers' report of loading the folder without its numbers."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    # what it would print is in the report
    transformers_logging.set_verbosity_error()
    try:
        with reading_model(folder):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                device_map="meta",
                attn_implementation="eager",
                trust_remote_code=trust_remote_code,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    return loaded[1]
