"""Whether texts come back from a tokenizer's tokens, and another way to load the one that its files
describe.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# Blanks of several widths, line ends, digits, punctuation: every vocabulary of a language model
# holds these.
PLAIN = "Hello, don't stop.  Two blanks\n\n    and 1234 digits (5 + 6 = 11)\nend"
SCRIPTS = "Grüße, Привет, 日本語, مرحبا, \U0001f600 €"


def checked_tokenizer(tokenizer: Any, path: str) -> Any:
    """Return a tokenizer from whose tokens texts come back: the one that was loaded, or the one
    that `tokenizer.json` alone describes.

    The class that transformers takes by the name in a configuration may rebuild a vocabulary in
    another form, which loses blanks.

    Args:
        tokenizer: as transformers loads it.
        path: its folder or hub id.

    Raises:
        ValueError: blanks, line ends, digits or punctuation are lost, however it is loaded.
    """
    decoded_text = read_back(tokenizer, PLAIN)
    if decoded_text == PLAIN:
        other = read_back(tokenizer, SCRIPTS)
        if other != SCRIPTS:
            logger.warning(
                "the tokenizer of %r has no tokens for some scripts: %r comes back as %r",
                path,
                SCRIPTS,
                other,
            )
        return tokenizer
    direct = _of_the_file(tokenizer, path)
    if direct is not None and read_back(direct, PLAIN) == PLAIN:
        logger.info(
            "the tokenizer of %r is loaded from its tokenizer.json: as %s, which its configuration "
            "names, it makes %r of %r",
            path,
            type(tokenizer).__name__,
            decoded_text[:30],
            PLAIN[:30],
        )
        return direct
    raise ValueError(
        f"the tokenizer of {path!r} ({type(tokenizer).__name__}) loses parts of texts: "
        f"{PLAIN[:32]!r} comes back as {decoded_text[:32]!r}; set "
        "actor_rollout_ref.model.tokenizer_path to a folder with the model's own tokenizer.json"
    )


def read_back(tokenizer: Any, text: str) -> str:
    """Return the text of a text's tokens."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
        return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False))
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _of_the_file(tokenizer: Any, path: str) -> Any | None:
    """Return the tokenizer as its `tokenizer.json` describes it; None if there is none."""
    from transformers import PreTrainedTokenizerFast

    if not tokenizer.is_fast:
        return None
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        return None
    try:
        return PreTrainedTokenizerFast.from_pretrained(path)
    except (OSError, ValueError):
        return None
