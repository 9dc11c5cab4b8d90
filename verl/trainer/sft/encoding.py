"""From conversations to token ids with a loss mask: of each reply, what the chat template shows
between its prompt and its end.

The prompt of a reply is the template's rendering of the messages before it, as in sampling. Where
the template shows a reply in another way once further messages follow, such as without its
thinking, it is trained in a sequence of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from verl.trainer.sft.chats import Chat
from verl.trainer.sft.data import TokenizedConversation
from verl.trainer.sft.rendering import Rendering, Tools, common_length
from verl.utils.data_file import DatasetError
from verl.utils.dataset.messages import ChatMessage

# Fields of a message that say whether it is trained: those of OpenAI, verl, axolotl and ms-swift.
MARKS = (
    "weight", "loss_mask", "train", "training", "loss", "trainable", "do_train", "is_trained", "learn",
    "enable_loss", "loss_weight", "loss_scale",
)  # fmt: skip


@dataclass(frozen=True)
class _Reply:
    """A reply with everything before it.

    Attributes:
        text: the rendering of the conversation up to the end of the reply.
        spans: places in it that are trained, from character to character.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


class ChatEncoder:
    """Encodes conversations for one tokenizer.

    Attributes:
        unseen: number of trained messages with a field that the template does not show, by field.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Set the tokenizer and the arguments of its chat template.

        Raises:
            DatasetError: there is no template, or it does not show contents that are text.
        """
        self._rendering = Rendering(tokenizer, template_kwargs)
        self._tokenizer = tokenizer
        # Without the tokenizer's own call, which hands single texts to another thread: three times
        # as fast.
        self._backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self.unseen: Counter[str] = Counter()
        if not self._rendering.shows_texts():
            raise DatasetError(
                "the chat template of model.path does not show contents that are text; use another template"
            )

    def encode(self, chat: Chat) -> list[TokenizedConversation]:
        """Return the sequences in which the replies of a conversation are trained, each reply once;
        none if no reply is.

        Raises:
            DatasetError: the template does not show a reply as sampling would, with file, row and
                cause.
        """
        try:
            trained = [at for at, message in enumerate(chat.messages) if _is_trained(message, at)]
            messages = [
                {name: value for name, value in each.items() if name not in MARKS} for each in chat.messages
            ]
            waiting = [self._reply(messages, at, chat.tools) for at in trained]
            sequences: list[TokenizedConversation] = []
            while waiting:
                text = waiting[-1].text
                included = [reply for reply in waiting if text.startswith(reply.text)]
                waiting = [reply for reply in waiting if not text.startswith(reply.text)]
                sequences.insert(0, self._tokens(text, [span for reply in included for span in reply.spans]))
        except DatasetError as error:
            raise DatasetError(f"{chat.where}: {error}" if chat.where else str(error)) from error
        return sequences

    def _reply(self, messages: Sequence[ChatMessage], at: int, tools: Tools) -> _Reply:
        if not at:
            raise DatasetError(
                "message 0: a reply of the assistant begins the conversation, so it has no prompt; put a "
                "message before it, or leave it out of training with loss_mask 0"
            )
        prompt = self._rendering.text(messages[:at], tools, prompt=True)
        whole = self._rendering.text(messages[: at + 1], tools)
        if not whole.startswith(prompt):
            same = common_length(prompt, whole)
            raise DatasetError(
                f"message {at}: the prompt of this reply goes on with {prompt[same:]!r:.60} where "
                f"the chat template shows the reply with {whole[same:]!r:.60}; training and "
                "sampling would differ (other data.apply_chat_template_kwargs, such as "
                "enable_thinking, or another template may agree)"
            )
        self._check_shown(messages, at, tools, prompt, whole)
        marks = self._rendering.marked(messages[: at + 1], tools)
        if marks is None:
            text = self._ended(messages, at, tools, len(prompt), whole)
            return _Reply(text, ((len(prompt), len(text)),))
        spans = tuple((max(begin, len(prompt)), end) for begin, end in marks if end > len(prompt))
        if not spans:
            raise DatasetError(f"message {at}: the chat template marks none of it with {{% generation %}}")
        if between := whole[len(prompt) : spans[0][0]]:
            raise DatasetError(
                f"message {at}: the chat template marks its reply as generated behind "
                f"{between!r:.60}, which is no part of the prompt; training and sampling would "
                "differ"
            )
        return _Reply(whole[: spans[-1][1]], spans)

    def _ended(self, messages: Sequence[ChatMessage], at: int, tools: Tools, begin: int, whole: str) -> str:
        """Return a rendering up to the special token that ends its last message, or that begins the
        next one.
        """
        closing = self._rendering.closing
        text = whole.removesuffix(closing) if len(whole) - len(closing) >= begin else whole
        if self._rendering.ends(stripped := text.rstrip()) and len(stripped) >= begin:
            return stripped
        token = self._next_token(messages[: at + 1], messages[at + 1 : at + 2], tools, whole)
        if not token:
            raise DatasetError(
                f"message {at}: the chat template puts no special token behind it, found "
                f"{whole[begin:][-40:]!r}; the model would not learn to end a reply"
            )
        return whole + token

    def _next_token(
        self, messages: Sequence[ChatMessage], following: Sequence[ChatMessage], tools: Tools, whole: str
    ) -> str:
        """Return the special token that begins the message after a reply, empty if the template
        shows none there.

        Args:
            messages: the conversation up to the reply.
            following: the message after it, if there is one.
            tools: the tools.
            whole: the rendering of `messages`.
        """
        role = "tool" if messages[-1].get("tool_calls") else "user"
        after = [*following, {"role": role, "content": "?"}][:1]
        # Templates that leave thinking out of earlier replies show a reply without it in the same
        # way before each message.
        plain = [_without_thinking(message) for message in messages]
        for before, text in ((messages, whole), (plain, None)):
            try:
                rendered_text = self._rendering.text(before, tools) if text is None else text
                followed = self._rendering.text([*before, *after], tools)
            except DatasetError:
                continue
            if followed.startswith(rendered_text) and (
                token := self._rendering.first_token(followed[len(rendered_text) :])
            ):
                return token
        return ""

    def _check_shown(
        self, messages: Sequence[ChatMessage], at: int, tools: Tools, prompt: str, whole: str
    ) -> None:
        """Count the fields of a reply that the template does not show. Raise DatasetError if it
        says nothing without them.
        """
        if tools and self._same(messages[:at], None, prompt, as_prompt=True):
            raise DatasetError(
                "the chat template does not show the tools of this row; use another template, or "
                "leave them out with data.tools_key"
            )
        message = messages[at]
        unseen = []
        for name in (name for name, value in message.items() if name != "role" and value):
            if name == "content" and message["content"].strip() in whole[len(prompt) :]:
                continue
            other = (
                {**message, "content": ""}
                if name == "content"
                else {k: v for k, v in message.items() if k != name}
            )
            if self._same([*messages[:at], other], tools, whole):
                unseen.append(name)
        content_fields = {name for name, value in message.items() if value and name not in ("role", "name")}
        if "tool_calls" in unseen or (content_fields and content_fields <= set(unseen)):
            raise DatasetError(
                f"message {at}: the chat template does not show its {' and '.join(unseen)}; the "
                "model would learn to say nothing"
            )
        self.unseen.update(unseen)

    def _same(
        self, messages: Sequence[ChatMessage], tools: Tools, text: str, as_prompt: bool = False
    ) -> bool:
        try:
            return self._rendering.text(messages, tools, prompt=as_prompt) == text
        except DatasetError:
            return False

    def _tokens(self, text: str, spans: Sequence[tuple[int, int]]) -> TokenizedConversation:
        """Return the tokens of a text, and of each whether it is in a span.

        The ids are those of the whole text. Only where one of its tokens lies across the beginning
        or the end of a span, the text on both sides is encoded apart, as in sampling.
        """
        ids: list[int] = []
        start = 0
        rest = self._encode(text)
        places: dict[int, int] = {}
        for cut in sorted({place for span in spans for place in span}):
            head = self._encode(text[start:cut]) if cut < len(text) else rest
            if rest[: len(head)] != head:
                tail = self._encode(text[cut:])
                if self._decode(head + tail) != self._decode(rest):
                    raise DatasetError(
                        f"the tokenizer joins {text[:cut][-20:]!r} and {text[cut:][:20]!r}, the "
                        "end of a prompt and the beginning of its reply, and changes the text "
                        "where they are encoded apart"
                    )
                ids += head
                start = cut
                rest = tail
                head = []
            places[cut] = len(ids) + len(head)
        ids += rest
        mask = [False] * len(ids)
        for begin, end in spans:
            mask[places[begin] : places[end]] = [True] * (places[end] - places[begin])
        return TokenizedConversation(tuple(ids), tuple(mask))

    def _encode(self, text: str) -> list[int]:
        if self._backend is None:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def encode(
    chat: Chat, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
) -> list[TokenizedConversation]:
    """Return the sequences in which the replies of one conversation are trained; see `ChatEncoder`."""
    return ChatEncoder(tokenizer, template_kwargs).encode(chat)


def _without_thinking(message: ChatMessage) -> ChatMessage:
    if message["role"] != "assistant":
        return message
    return {name: value for name, value in message.items() if name in ("role", "content", "tool_calls")}


def _is_trained(message: ChatMessage, at: int) -> bool:
    """Return whether a message is a reply that is trained. Raise DatasetError for a mark that is
    neither 0 nor 1.
    """
    marks = {name: message[name] for name in MARKS if name in message}
    for name, value in marks.items():
        if value not in (0, 1) or (value and message["role"] != "assistant"):
            raise DatasetError(
                f"message {at} of {message['role']!r} has {name}={value!r}; expected 0 or 1, and 1 "
                "for messages of the assistant alone: only these are trained"
            )
    return message["role"] == "assistant" and all(marks.values())
