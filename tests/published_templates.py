"""Chat templates that are published in packages, and tokenizers that know their tokens."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TRL = "trl==1.16.0"
XINFERENCE = "xinference==4.1.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"  # as source: its wheel does not hold llama.cpp's templates
# In the form in which model families write tokens: <|im_end|>, <｜User｜>, </s>, [INST], <start_of_turn>,
# <bos>, <|turn>.
_TOKENS = re.compile(
    r"<\|?[\w:]{1,40}\|>|<\|[\w:]{1,40}\|?>|<｜[\w▁]{1,40}｜>|</?s>|\[/?[A-Z_]{3,20}\]|<\w{1,20}_of_\w{1,20}>|<[be]os>"
    r"|</?assistant>|\]~\w*\]|\[e~\["
)


def downloaded(package: str, *options: str) -> Path:
    """The unpacked archive of a package, which is downloaded once on a machine; skips where it cannot be."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "verl_mas" / f"{package}-files"
    root.mkdir(parents=True, exist_ok=True)
    made = root / "made"
    folder = root / "files"
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                *options,
                package,
                "-d",
                str(root),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{package} cannot be downloaded: {done.stderr.strip()[-300:]}")
            [archive] = [path for path in root.iterdir() if path.suffix in (".whl", ".gz")]
            if archive.suffix == ".whl":
                subprocess.run([sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)], check=True)
            else:
                folder.mkdir(exist_ok=True)
                subprocess.run(
                    ["tar", "-xzf", str(archive), "-C", str(folder), "--wildcards", "*.jinja"], check=True
                )
            archive.unlink()
            made.touch()
    return folder


def trl_templates() -> dict[str, str]:
    """The templates of trl by name."""
    return dict(_files(downloaded(TRL) / "trl" / "chat_templates"))


def all_templates() -> dict[str, str]:
    """The different templates of the packages by name."""
    found = {f"trl {name}": template for name, template in trl_templates().items()}
    for path in sorted((downloaded(XINFERENCE) / "xinference" / "model" / "llm" / "models").glob("*.json")):
        model = json.loads(path.read_text(encoding="utf-8"))
        for each in model if isinstance(model, list) else [model]:
            if isinstance(template := each.get("chat_template"), str) and "{%" in template:
                found[f"xinference {each['model_name']}"] = template
    (source,) = downloaded(LLAMA_CPP, "--no-binary", "llama-cpp-python").iterdir()
    found |= {
        f"llama.cpp {n}": t for n, t in _files(source / "vendor" / "llama.cpp" / "models" / "templates")
    }
    return {name: template for template, name in {template: name for name, template in found.items()}.items()}


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")


def tokenizer_for(template: str, *, blanks: str = "") -> Any:
    """A tokenizer of bytes, or of characters with SentencePiece's blank before a text, that knows a
    template's tokens.

    Args:
        template: the template.
        blanks: `prepend_scheme` of SentencePiece's blank: first or always; empty for bytes.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = sorted({"<s>", "</s>", *_TOKENS.findall(template)})
    vocabulary = {token: place for place, token in enumerate(special)}
    if blanks:
        characters = [
            "▁",
            *(f"▁{chr(c)}" for c in range(33, 127)),
            *(f"<0x{byte:02X}>" for byte in range(256)),
        ]
        for text in (*characters, *(chr(c) for c in range(33, 127))):
            vocabulary.setdefault(text, len(vocabulary))
        merges = [("▁", chr(c)) for c in range(33, 127)]
        core = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<0x00>"))
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=blanks, split=False)
        core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=blanks)])
    else:
        for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
            vocabulary.setdefault(letter, len(vocabulary))
        core = Tokenizer(models.BPE(vocabulary, []))
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\n+|[^\n]+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        core.decoder = decoders.ByteLevel()
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer
