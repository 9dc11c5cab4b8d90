"""GGUF files as models: read through transformers, written once as a folder of safetensors, which
the rest of the program reads.

What transformers leaves out of a file is repaired here, or refused: the ends and special tokens of
its tokenizer, the rule by which text is cut before tokens are merged, and the scaling of its rotary
positions.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verl.models.loader import ModelPathError, check_causal_lm, count_of
from verl.utils.names import error_line

logger = logging.getLogger(__name__)

ENDING = ".gguf"
# Changes when the same file would be written differently.
FORMAT = 2
SHARD_BYTES = 2**30
# Bytes at the beginning and at the end of a file that identify it, with its size and time.
SAMPLE_BYTES = 2**20
# Kinds of tokenizers, as llama.cpp names them: merges of bytes, merges of SentencePiece.
BYTE_PAIRS = "gpt2"
TOKENIZER_KINDS = (BYTE_PAIRS, "llama")
# Rules of vocabularies in which a word that is a token stands for itself, though its merges end in
# others, as Llama 3's " Việt".
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3")
# llama.cpp's types of tokens.
CONTROL = 3
USER_DEFINED = 4
# Numbers of several digits, contractions, scripts, spaces and line ends: where rules to cut text
# differ.
ROUND_TRIPS = ("In 2024, it cost 12345.67 EUR.", "I'll don't  two\n\n three\t!", "Größe 東京 🙂 naïve")
DAMAGE = (ValueError, KeyError, IndexError, TypeError, OverflowError, NotImplementedError, struct.error)


def gguf_file(path: str) -> Path | None:
    """Return the GGUF file that a model path names: a file, the only one of a folder without other
    weights, or `owner/name/FILE.gguf`.

    Raises:
        ModelPathError: a folder with several such files, or a hub file that cannot be downloaded.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        names = [entry.name for entry in local.iterdir()]
        if any(name.endswith((".safetensors", ".bin", ".index.json")) for name in names):
            return None
        files = sorted(name for name in names if name.endswith(ENDING))
        if len(files) > 1:
            raise ModelPathError(
                f"model folder {path!r} has {len(files)} GGUF files: name one, such as {local / files[0]}"
            )
        return (local / files[0]).absolute() if files else None
    if not path.endswith(ENDING):
        return None
    if local.is_file():
        return local.absolute()
    if path.startswith((".", "~", os.sep)) or path.count("/") != 2:
        raise ModelPathError(
            f"model path {path!r} does not exist; give an existing GGUF file, or "
            "owner/name/FILE.gguf of the hub"
        )
    return _download(path)


def _download(path: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, name = path.rpartition("/")
    try:
        return Path(hf_hub_download(repository, name))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ModelPathError(
            f"{path!r} is neither an existing file nor one of the hub that can be loaded: {error_line(error)}"
        ) from error


def cache_folder() -> Path:
    """Return the folder of converted models: `VERL_MAS_CACHE`, or `verl-mas` in the user's cache
    folder.
    """
    root = (
        os.environ.get("VERL_MAS_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-mas"
    )
    return Path(root).expanduser().absolute() / "gguf"


def converted(file: Path) -> Path:
    """Return the folder of a GGUF file's model in transformers' format, written at the first call;
    several processes may call at once.

    Raises:
        ModelPathError: the file is damaged, or transformers cannot read it.
    """
    cache = cache_folder()
    folder = cache / f"{file.stem}-{_identity(file)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process has written it while this one waited.
        if folder.is_dir():
            return folder
        started = time.monotonic()
        partial = cache / f".partial-{folder.name}"
        # A process that was killed while it wrote left this folder; who has the lock is the only
        # writer.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            convert(file, partial)
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        logger.info("%s: written as safetensors in %.0f s: %s", file, time.monotonic() - started, folder)
    return folder


def _identity(file: Path) -> str:
    """Return a short digest that changes with the file, with this module's format and with
    transformers.
    """
    from transformers import __version__

    stat = file.stat()
    digest = hashlib.sha256(f"{FORMAT} {__version__} {stat.st_size} {stat.st_mtime_ns}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(SAMPLE_BYTES))
        stream.seek(max(0, stat.st_size - SAMPLE_BYTES))
        digest.update(stream.read())
    return digest.hexdigest()[:12]


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder: configuration, weights in fp32, tokenizer and
    chat template.

    Tensors are dequantized one at a time and written in shards of 1 GiB, which is the memory that
    this takes; experts of a mixture that transformers joins are in memory until the end.

    Raises:
        ModelPathError: as `converted`.
    """
    with _reading(file):
        from gguf import GGUFReader
        from transformers.integrations.gguf import read_gguf_metadata

        metadata, names = read_gguf_metadata(str(file))
        _check_architecture(file, metadata)
        _check_tokenizer_kind(file, metadata)
        reader = GGUFReader(str(file))
        _check_types(file, reader.tensors)
        parts = _parts(file, metadata, names)
        config = _configuration(file, parts["config"], metadata, reader.tensors)
        tokenizer = _tokenizer(file, parts, metadata)
    config.dtype = torch.float32
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    check_causal_lm(str(folder))
    with _reading(file):
        _write_weights(file, folder, config, metadata["general.architecture"], reader.tensors)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raise ModelPathError for errors about the content of a GGUF file."""
    try:
        yield
    except ModelPathError:
        raise
    except ImportError as error:
        raise ModelPathError(
            f"reading {str(file)!r} needs the package gguf: pip install -e '.[gguf]' ({error_line(error)})"
        ) from error
    except DAMAGE as error:
        raise ModelPathError(
            f"GGUF file {str(file)!r} cannot be read: {error_line(error)}; it is cut or damaged, or "
            "transformers cannot read a model like it: copy the file again, or give the model's "
            "own folder of safetensors"
        ) from error


def _check_architecture(file: Path, metadata: Mapping[str, Any]) -> None:
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = metadata["general.architecture"]
    readable = sorted({*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS} - {"general"})
    # transformers looks for some architectures under their names in Python.
    if {architecture, architecture.replace("-", "_"), architecture.replace("moe", "_moe")}.isdisjoint(
        readable
    ):
        raise ModelPathError(
            f"GGUF file {str(file)!r} has the architecture {architecture!r}, of which transformers "
            f"reads no GGUF files; it reads {', '.join(readable)}"
        )


def _check_tokenizer_kind(file: Path, metadata: Mapping[str, Any]) -> None:
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in TOKENIZER_KINDS:
        raise ModelPathError(
            f"GGUF file {str(file)!r} has a tokenizer of kind {kind!r}; expected "
            f"{' or '.join(map(repr, TOKENIZER_KINDS))}: give the model's own folder of safetensors"
        )
    rule = metadata.get("tokenizer.ggml.pre")
    if kind == BYTE_PAIRS and rule not in pre_tokenizers():
        raise ModelPathError(
            f"GGUF file {str(file)!r} cuts text by the rule {rule!r} (tokenizer.ggml.pre), which "
            f"is not in the file; rules that can be read: {', '.join(pre_tokenizers())}; give the "
            "model's own folder of safetensors"
        )


def pre_tokenizers() -> dict[str, Callable[[], Any]]:
    """Return functions that make the pre-tokenizer of a rule, by llama.cpp's name of it: a GGUF
    file holds the name alone.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    def by_pattern(pattern: str) -> Any:
        return Sequence(
            [Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def gpt2() -> Any:
        return ByteLevel(add_prefix_space=False)

    def single_digits() -> Any:
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])

    def qwen2() -> Any:
        return by_pattern(PRETOKENIZE_REGEX)

    def llama3() -> Any:
        return by_pattern(TikTokenConverter().pattern)

    return {
        **dict.fromkeys(("gpt-2", "phi-2", "olmo"), gpt2),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), single_digits),
        **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen"), qwen2),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"), llama3),
    }


def _check_types(file: Path, tensors: Any) -> None:
    """Raise ModelPathError for tensors in a type that the package gguf cannot dequantize."""
    for kind in {tensor.tensor_type: None for tensor in tensors}:
        if not _is_readable(kind):
            from gguf import GGMLQuantizationType

            readable = [other.name for other in GGMLQuantizationType if _is_readable(other)]
            example = next(tensor.name for tensor in tensors if tensor.tensor_type == kind)
            raise ModelPathError(
                f"GGUF file {str(file)!r} holds {example} as {kind.name}, which cannot be "
                f"dequantized; types that can: {', '.join(readable)}"
            )


def _is_readable(kind: Any) -> bool:
    from gguf import GGML_QUANT_SIZES, dequantize

    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _parts(file: Path, metadata: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return what transformers reads of a file besides its tensors: `config`, `tokenizer` and
    `tokenizer_config`.
    """
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config, get_gguf_tokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    if metadata["general.architecture"] not in GGUF_CONFIG_ARCHS:
        return load_gguf_checkpoint(str(file))
    converter, tokenizer, tokenizer_config = get_gguf_tokenizer(str(file))
    config = get_gguf_config(dict(metadata), names)
    return {
        "config": config,
        "tokenizer": tokenizer,
        "tokenizer_config": tokenizer_config,
        "converter": converter,
    }


def _configuration(file: Path, values: dict[str, Any], metadata: Mapping[str, Any], tensors: Any) -> Any:
    """Return the model's configuration, with the scaling of its positions."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind = metadata.get(f"{metadata['general.architecture']}.rope.scaling.type", "none")
    if kind != "none" and "rope_scaling" not in values:
        raise ModelPathError(
            f"GGUF file {str(file)!r} scales its positions ({kind}), which transformers does not "
            "read from such a file; give the model's own folder of safetensors"
        )
    config = CONFIG_MAPPING[values["model_type"]].from_dict(
        {k: v for k, v in values.items() if not k.startswith("_")}
    )
    # transformers reads it for some architectures, and takes the class's default for the others.
    if "head_dim" in config.to_dict() and (
        size := metadata.get(f"{metadata['general.architecture']}.attention.key_length")
    ):
        config.head_dim = size
    classes: Any = AutoModelForCausalLM._model_mapping
    if type(config) in classes:
        # vLLM chooses its class by it
        config.architectures = [classes[type(config)].__name__]
    if (
        factors := next((tensor for tensor in tensors if tensor.name == "rope_freqs.weight"), None)
    ) is not None:
        config.rope_parameters = _scaled_positions(
            file, config, torch.from_numpy(np.array(factors.data, dtype=np.float32))
        )
    return config


def _scaled_positions(file: Path, config: Any, factors: torch.Tensor) -> dict[str, Any]:
    """Return the parameters of Llama 3's scaling that give the factors of a file. Raises
    ModelPathError if there are none.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = dict(config.rope_parameters)
    scaling = {
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    parameters = plain | scaling | {"rope_type": "llama3"}
    config.rope_parameters = parameters
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    unscaled = 1.0 / plain["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if scaled.shape != factors.shape or not torch.allclose(scaled * factors, unscaled, rtol=1e-3):
        raise ModelPathError(
            f"GGUF file {str(file)!r} scales its positions by factors (rope_freqs.weight) that are "
            "not Llama 3's; give the model's own folder of safetensors"
        )
    return parameters


def _tokenizer(file: Path, parts: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
    """Return the tokenizer of a file, with its own ends, special tokens and rule to cut text.

    Raises:
        ModelPathError: the file names no end token, or text changes on its way through tokens.
    """
    from tokenizers import AddedToken
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.ggml import GGUF_TO_FAST_CONVERTERS, convert_gguf_tokenizer

    values = parts["tokenizer"]
    model_type = parts.get("converter") or parts["config"]["model_type"]
    if model_type not in GGUF_TO_FAST_CONVERTERS:
        raise ModelPathError(
            f"GGUF file {str(file)!r}: transformers makes no tokenizer for the architecture "
            f"{model_type!r}; it makes one for {', '.join(sorted(GGUF_TO_FAST_CONVERTERS))}"
        )
    tokens = list(values["tokens"])
    backend, _ = convert_gguf_tokenizer(model_type, dict(values))
    if metadata["tokenizer.ggml.model"] == BYTE_PAIRS:
        backend.pre_tokenizer = pre_tokenizers()[metadata["tokenizer.ggml.pre"]]()
        backend.model.ignore_merges = metadata["tokenizer.ggml.pre"] in WHOLE_WORDS
        backend.decoder = ByteLevel()
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        names = [
            token
            for token, token_kind in zip(tokens, values.get("token_type", ()), strict=False)
            if token_kind == kind
        ]
        backend.add_tokens([AddedToken(name, normalized=False, special=special) for name in names])
    ends = {
        name: _token(file, tokens, values.get(f"{name}_id"), name)
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    if ends["eos_token"] is None:
        raise ModelPathError(
            f"GGUF file {str(file)!r} names no end token (tokenizer.ggml.eos_token_id); give the "
            "model's own folder"
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **ends)
    tokenizer.chat_template = parts["tokenizer_config"].get("chat_template")
    for text in ROUND_TRIPS:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if back != text:
            raise ModelPathError(
                f"GGUF file {str(file)!r}: its tokenizer turns {text!r} into {back!r}; give the "
                "model's own folder"
            )
    return tokenizer


def _token(file: Path, tokens: list[str], index: int | None, name: str) -> str | None:
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise ModelPathError(
            f"GGUF file {str(file)!r}: its {name} has id {index}, but it has {len(tokens)} tokens; "
            "the file is damaged"
        )
    return tokens[index]


def _write_weights(file: Path, folder: Path, config: Any, architecture: str, tensors: Any) -> None:
    """Write the tensors in fp32, in shards, with their index."""
    from gguf import dequantize
    from transformers import AutoModelForCausalLM
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    if architecture in GGUF_CONFIG_ARCHS:
        _write_whole(file, folder, config)
        return
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(skeleton, processor)
    shards = _Shards(folder)
    # tensors that a processor assembles from several of the file
    joined: dict[str, torch.Tensor] = {}
    unread = []
    for tensor in tensors:
        if tensor.name == "rope_freqs.weight":
            continue  # in the configuration
        values = dequantize(tensor.data, tensor.tensor_type)
        result = processor.process(
            values, tensor.name, tensor_key_mapping=names, parsed_parameters={"tensors": joined}
        )
        # A part of one that the processor assembles.
        if result.name is None:
            continue
        if result.name not in names:
            unread.append(tensor.name)
            continue
        name = names[result.name]
        shards.add(name, torch.from_numpy(np.array(result.weights, dtype=np.float32)))
    if unread:
        raise ModelPathError(
            f"GGUF file {str(file)!r} holds {count_of(unread)} for which transformers' "
            f"{config.model_type} has no place, such as {unread[0]}: its model is not the one of "
            "the file; give the model's own folder of safetensors"
        )
    for name, weights in joined.items():
        shards.add(name, weights)
    _check_complete(file, skeleton, shards.shapes)
    shards.close()


def _check_complete(file: Path, skeleton: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelPathError if tensors of a model are not in the file, or have other shapes there;
    `skeleton` has no numbers.
    """
    expected = {
        name: tuple(tensor.shape)
        for name, tensor in skeleton.state_dict().items()
        # Weights that are tied are in a file once.
        if name not in skeleton.all_tied_weights_keys
    }
    if missing := sorted(expected.keys() - shapes.keys()):
        raise ModelPathError(
            f"GGUF file {str(file)!r} lacks {count_of(missing)} of its model, such as {missing[0]}"
        )
    if other := [name for name in shapes if shapes[name] != expected.get(name, shapes[name])]:
        raise ModelPathError(
            f"GGUF file {str(file)!r} contradicts its description in {count_of(other)}: "
            f"{other[0]} has the shape {shapes[other[0]]}, expected {expected[other[0]]}; give the "
            "model's own folder of safetensors"
        )


class _Shards:
    """Safetensors files of at most `SHARD_BYTES` and their index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, torch.Tensor] = {}
        self._files: list[list[str]] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._bytes = 0
        self._total = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add one tensor; a full shard is written before."""
        if self._tensors and self._bytes + tensor.nbytes > SHARD_BYTES:
            self._write()
        self._tensors[name] = tensor.contiguous()
        self.shapes[name] = tuple(tensor.shape)
        self._bytes += tensor.nbytes
        self._total += tensor.nbytes

    def _write(self) -> None:
        from safetensors.torch import save_file

        save_file(self._tensors, self._folder / f"shard-{len(self._files)}", metadata={"format": "pt"})
        self._files.append(list(self._tensors))
        self._tensors = {}
        self._bytes = 0

    def close(self) -> None:
        """Write the last shard, and name all of them as transformers expects."""
        self._write()
        if len(self._files) == 1:
            (self._folder / "shard-0").rename(self._folder / "model.safetensors")
            return
        index = {}
        for number, names in enumerate(self._files):
            file = f"model-{number + 1:05}-of-{len(self._files):05}.safetensors"
            (self._folder / f"shard-{number}").rename(self._folder / file)
            index.update(dict.fromkeys(names, file))
        text = json.dumps({"metadata": {"total_size": self._total}, "weight_map": index}, indent=1)
        (self._folder / "model.safetensors.index.json").write_text(text)


def _write_whole(file: Path, folder: Path, config: Any) -> None:
    """Write a model that transformers loads by its own conversion of tensors, all in memory at
    once.
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        config=config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    # It counts as quantized still, and transformers saves no quantized GGUF.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
