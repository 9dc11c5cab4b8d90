"""Replies of the `hf` engine that follow a form: its grammar, compiled by xgrammar as in vLLM, and
the mask of each next token.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from verl.protocol.generate import StructureError

MAX_CHARACTERS = 1 << 17
MAX_NESTING = 80  # as in vLLM: 64 levels of a schema, 16 of what surrounds it
KEPT = 64  # compiled forms
LIMIT_S = 20.0


class GrammarCompiler:
    """Compiles `SamplingParams.structure`, one form at a time in a thread. xgrammar and the
    tokenizer are loaded with the first.

    Args:
        load_tokenizer: returns the tokenizer.
        vocab_size: number of logits of a token.
        limit_s: seconds that a request waits for its form.
    """

    def __init__(self, load_tokenizer: Callable[[], Any], vocab_size: int, limit_s: float = LIMIT_S) -> None:
        self._load_tokenizer = load_tokenizer
        self._vocab_size = vocab_size
        self._limit_s = limit_s
        self._compiler: Any = None
        self._turn = threading.Lock()
        self._grammars: OrderedDict[str, Future[Any]] = OrderedDict()

    async def compile(self, structure: str) -> Any:
        """Return the compiled grammar of a form. Raises `StructureError` if no reply can follow it,
        or it takes too long to compile.
        """
        if self._compiler is None:
            await asyncio.to_thread(self._load)
        future = self._grammars.pop(structure, None)
        if future is None:
            _check_size(structure)
            future = Future()
            # A daemon: a form that never compiles must not keep the process from ending.
            threading.Thread(target=self._work, args=(structure, future), name="grammar", daemon=True).start()
        self._grammars[structure] = future
        if len(self._grammars) > KEPT:
            self._grammars.popitem(last=False)
        try:
            # Other requests may wait for the same form.
            grammar_or_error = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(future)), self._limit_s
            )
        except TimeoutError as error:
            raise StructureError(
                f"the form was not compiled in {self._limit_s:g} s; use a smaller schema"
            ) from error
        except Exception:
            # An error that is not the form's own may not come again, so it is not kept.
            if self._grammars.get(structure) is future:
                del self._grammars[structure]
            raise
        if isinstance(grammar_or_error, str):
            raise StructureError(grammar_or_error)
        return grammar_or_error

    def _load(self) -> None:
        import xgrammar

        with self._turn:
            # Another request may have loaded it while this one waited for its turn.
            if self._compiler is None:
                info = xgrammar.TokenizerInfo.from_huggingface(
                    self._load_tokenizer(), vocab_size=self._vocab_size
                )
                self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def _work(self, structure: str, future: Future[Any]) -> None:
        try:
            with self._turn:
                future.set_result(self._compiled(structure))
        except StructureError as error:
            # As text: an error that is kept keeps, by its traceback, the frames of every request
            # that it is raised in.
            future.set_result(str(error))
        except Exception as error:  # whatever it is, those that wait get it
            future.set_exception(error)

    def _compiled(self, structure: str) -> Any:
        import xgrammar

        try:
            grammar = self._compiler.compile_structural_tag(structure)
        except (RuntimeError, ValueError) as error:
            raise StructureError(f"xgrammar refused: {str(error).strip()}") from error
        mask = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
        if not mask.any():
            raise StructureError("the form allows no first token")
        return grammar


class SlotForms:
    """The place in its grammar of every slot whose reply follows a form; false if there is none."""

    def __init__(self) -> None:
        self._matchers: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._matchers)

    def start(self, slot: int, grammar: Any, stop_token_ids: Sequence[int]) -> None:
        """Begin a reply. Where its form is complete, only `stop_token_ids` may follow; the
        tokenizer's end token if there are none.
        """
        import xgrammar

        self._matchers[slot] = xgrammar.GrammarMatcher(
            grammar, override_stop_tokens=list(stop_token_ids) or None
        )

    def stop(self, slot: int) -> None:
        """Forget the reply of a slot, with a form or without."""
        self._matchers.pop(slot, None)

    def mask(self, logits: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return a copy of logits `[slots, vocab]`, -inf where a form does not allow a token, and
        the slots without an allowed one.
        """
        slots = list(self._matchers)
        vocab = logits.shape[1]
        words = torch.zeros(len(slots), -(-vocab // 32), dtype=torch.int32)
        for row, slot in enumerate(slots):
            self._matchers[slot].fill_next_token_bitmask(words, row)
        bits = words.to(logits.device).unsqueeze(2) >> torch.arange(
            32, dtype=torch.int32, device=logits.device
        )
        allowed = (bits & 1).bool().flatten(1)[:, :vocab]
        possible = words.any(1).tolist()
        index = torch.as_tensor(slots, device=logits.device)
        out = logits.clone()
        out[index] = out[index].masked_fill(~allowed, float("-inf"))
        return out, [slot for slot, some in zip(slots, possible, strict=True) if not some]

    def accept(self, tokens: torch.Tensor, resting: Callable[[int], bool]) -> None:
        """Move every reply behind its token of `tokens` `[slots]`, unless its slot is `resting`;
        one whose form has ended is no longer masked.
        """
        sampled = tokens.tolist()
        for slot, matcher in list(self._matchers.items()):
            if resting(slot):
                continue
            if not matcher.accept_token(sampled[slot]):
                raise RuntimeError(
                    f"token {sampled[slot]} of slot {slot} is not allowed by the grammar whose "
                    "mask it was sampled under"
                )
            if matcher.is_terminated():
                self.stop(slot)


def _check_size(structure: str) -> None:
    """Raise `StructureError` for a form that is too long, or nested too deeply for a parser that
    recurses.
    """
    if len(structure) > MAX_CHARACTERS:
        raise StructureError(
            f"the form has {len(structure)} characters, expected at most {MAX_CHARACTERS}; use a "
            "smaller schema"
        )
    try:
        level = [json.loads(structure)]
    except (ValueError, RecursionError) as error:
        raise StructureError(f"the form cannot be read: {error}") from error
    for _ in range(MAX_NESTING):
        inner = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise StructureError(
        f"objects and arrays of the form are nested in more than {MAX_NESTING} levels; use a flatter schema"
    )
