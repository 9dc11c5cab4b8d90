"""Tasks of a run: the checked rows of one or more files, without those whose prompt is too long."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from verl.protocol.template_time import template_clock
from verl.trainer.config import DataConfig
from verl.utils.chat_template import template_cause
from verl.utils.data_file import DatasetError
from verl.utils.data_file import data_files as paths_of
from verl.utils.dataset.files import Row, read_rows
from verl.utils.dataset.messages import EXPECTED, check_media, check_text, read_object, read_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
TOKENIZE_ROWS = 1000
# Columns that other trainers read.
UNREAD = ("images", "videos", "audios", "tools", "agent_name")


@dataclass(frozen=True)
class PromptMeasure:
    """A prompt made from every row, and its length limit.

    Attributes:
        name: of the prompt's reader, for messages.
        limit: maximum number of tokens.
        lengths: maps rows to the number of tokens of each; called with up to 1000 rows at a time.
    """

    name: str
    limit: int
    lengths: Callable[[Sequence[Row]], Sequence[int]]


class RLHFDataset(Dataset[Any]):
    """Rows in verl's schema, in file order.

    A row is `data_source`, `prompt` (chat messages), `ability`, `reward_model` (`style`,
    `ground_truth`) and `extra_info`. Every row gets `raw_prompt` (its messages), `index` (position
    over all files before filtering) and `task_id` (`<data_source>:<index>`), so that the name of a
    task does not depend on the filter.

    Args:
        data_files: one path or several, parquet, jsonl or json.
        tokenizer: measures prompts in tokens; None skips the filter.
        config: `prompt_key`, `max_prompt_length` and `filter_overlong_prompts` are read.
        max_samples: maximum number of rows to keep after filtering; -1 keeps all.
        measures: limits of a row, e.g. of the first prompt of every agent; without any, the row's
            own messages are measured.
        needs_ground_truth: whether a row without `reward_model.ground_truth` is an error; False for
            environments that do not need it.
        convert: makes what indexing returns of a row; a copy of the row without one.

    Raises:
        DatasetError: a missing file, a row without messages or a required ground truth (named by
            file and row), a prompt that is too long while the filter is off, or no row left.
    """

    def __init__(
        self,
        data_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        tokenizer: PreTrainedTokenizerBase | None,
        config: DataConfig,
        max_samples: int = -1,
        measures: Sequence[PromptMeasure] = (),
        needs_ground_truth: bool = True,
        convert: Callable[[Row], Any] = dict,
    ) -> None:
        self.data_files = paths_of(data_files)
        self.prompt_key = config.prompt_key
        self.needs_ground_truth = needs_ground_truth
        self.convert = convert
        rows: list[Row] = []
        self._first_rows: list[tuple[int, str]] = []
        for file in self.data_files:
            self._first_rows.append((len(rows), file))
            rows += [
                self._checked(row, f"{file}, row {number}") for number, row in enumerate(read_rows(file))
            ]
        for index, row in enumerate(rows):
            row.update(index=index, task_id=f"{row['data_source']}:{index}")
        for name in UNREAD:
            if count := sum(bool(row.get(name)) for row in rows):
                logger.warning(
                    "%d of %d tasks have a column %r, which is not read: agents have tools of their "
                    "own, and models read text",
                    count,
                    len(rows),
                    name,
                )
        if not rows:
            raise DatasetError(f"no rows in {', '.join(self.data_files)}")
        measures = [] if tokenizer is None else measures or [own_messages(tokenizer, config)]
        fitting_rows = self._fitting(rows, measures, config)
        self.num_overlong = len(rows) - len(fitting_rows)
        if not fitting_rows:
            raise DatasetError(
                f"all {len(rows)} prompts of {', '.join(self.data_files)}, with the agents' prompt "
                "templates around them, are longer than "
                f"{_limit(min(measure.limit for measure in measures), config)}; raise it"
            )
        if self.num_overlong:
            logger.warning(
                "dropped %d of %d tasks: prompt over data.max_prompt_length=%d",
                self.num_overlong,
                len(rows),
                config.max_prompt_length,
            )
        self.rows = fitting_rows if max_samples < 0 else fitting_rows[:max_samples]
        if not self.rows:
            raise DatasetError(f"max_samples={max_samples} keeps no task; use -1 for all")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> Any:
        return self.convert(self.rows[item])

    def place(self, index: int) -> str:
        """Return file and row of a task by its `index`."""
        first, file = max((first, file) for first, file in self._first_rows if first <= index)
        return f"{file}, row {index - first}"

    def _checked(self, row: Row, where: str) -> Row:
        column = f"{where}: column {self.prompt_key!r} (data.prompt_key)"
        prompt = row.get(self.prompt_key)
        if self.prompt_key not in row:
            raise DatasetError(
                f"{where}: no column {self.prompt_key!r} (data.prompt_key); {EXPECTED}; columns: "
                f"{', '.join(row)}"
            )
        if prompt is None:
            raise DatasetError(f"{column} is empty; {EXPECTED}; columns: {', '.join(row)}")
        messages = read_prompt(prompt, column)
        check_media(row, messages, column)
        judged = read_object(row.get("reward_model"), f"{where}: column 'reward_model'")
        extra = read_object(row.get("extra_info"), f"{where}: column 'extra_info'")
        truth = (judged or {}).get("ground_truth")
        if self.needs_ground_truth and _says_nothing(truth):
            raise DatasetError(
                f"{where}: no ground truth; reward_model.ground_truth must be set, found "
                f"{row.get('reward_model')!r:.120} (an environment that does not need it sets "
                "`needs_ground_truth = False`)"
            )
        check_text(truth, f"{where}: reward_model.ground_truth")
        source = row.get("data_source") or "unknown"
        read = {"reward_model": judged, "extra_info": extra}
        return {
            **row,
            **{k: v for k, v in read.items() if k in row},
            "data_source": source,
            "raw_prompt": messages,
        }

    def _fitting(self, rows: list[Row], measures: Sequence[PromptMeasure], config: DataConfig) -> list[Row]:
        fits = [True] * len(rows)
        for measure in measures:
            lengths: list[int] = []
            for start in range(0, len(rows), TOKENIZE_ROWS):
                lengths += self._measured(measure, rows[start : start + TOKENIZE_ROWS])
            longest = max(range(len(rows)), key=lengths.__getitem__)
            if not config.filter_overlong_prompts and lengths[longest] > measure.limit:
                raise DatasetError(
                    f"task {rows[longest]['task_id']}: prompt of {lengths[longest]} tokens for "
                    f"{measure.name} is over {_limit(measure.limit, config)}; raise it, or set "
                    "data.filter_overlong_prompts=true"
                )
            fits = [fit and length <= measure.limit for fit, length in zip(fits, lengths, strict=True)]
        return [row for row, fit in zip(rows, fits, strict=True) if fit]

    def _measured(self, measure: PromptMeasure, rows: Sequence[Row]) -> Sequence[int]:
        """Return the lengths of prompts. Raise DatasetError naming the row whose messages the chat
        template refuses.
        """
        try:
            return measure.lengths(rows)
        except Exception as error:
            # a template raises what it likes; what others raise goes on
            cause = template_cause(error)
            if cause is None:
                raise
            if len(rows) > 1:
                return [length for row in rows for length in self._measured(measure, [row])]
            raise DatasetError(
                f"{self.place(rows[0]['index'])}: the chat template cannot show the prompt for "
                f"{measure.name}: {cause}"
            ) from error


def _says_nothing(truth: Any) -> bool:
    """Return whether a ground truth is none: blanks, NaN (a missing cell of pandas), or a list of
    such.
    """
    if isinstance(truth, (list, tuple)):
        return all(map(_says_nothing, truth))
    if isinstance(truth, str):
        return not truth.strip()
    return truth is None or truth == {} or truth != truth


def _limit(tokens: int, config: DataConfig) -> str:
    """Return the key of a prompt's length limit, with its value."""
    is_rollout_limit = tokens != config.max_prompt_length
    return f"{'rollout.prompt_length' if is_rollout_limit else 'data.max_prompt_length'}={tokens}"


def own_messages(tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> PromptMeasure:
    """Return the measure of a row's messages alone, with the chat template and its generation
    prompt.
    """

    def lengths(rows: Sequence[Row]) -> list[int]:
        return prompt_lengths(
            [row["raw_prompt"] for row in rows], tokenizer, config.apply_chat_template_kwargs
        )

    return PromptMeasure("the model", config.max_prompt_length, lengths)


def prompt_lengths(
    prompts: Sequence[list[dict[str, Any]]],
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the number of tokens of each conversation, with the chat template and its generation
    prompt.
    """
    more = {**template_clock(), **(template_kwargs or {})}
    texts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
        for messages in prompts
    ]
    # The template has added the special tokens; adding them again would count (and later train on)
    # each twice.
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
