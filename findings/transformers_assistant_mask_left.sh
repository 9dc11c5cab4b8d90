#!/usr/bin/env bash
# transformers 5.17.0: `apply_chat_template(..., return_assistant_tokens_mask=True, truncation=True)` with a tokenizer of
# `truncation_side="left"`, which keeps the end of a long conversation: as soon as the beginning of the first answer is cut off, the mask is
# 0 everywhere, also on later answers that are kept whole. The search for an answer's first token ends at the first one that is not there.
# Supervised training on such rows has no token to learn from, and no warning says so.
#
# Output of the last part of this script (of the kept text the tokens that the mask marks):
#   truncation_side=left, max_length=16: kept <|im_start|> user first ... two <|im_end|>; learnt one <|im_end|> two <|im_end|>
#   truncation_side=left, max_length=10: kept one <|im_end|> ... two <|im_end|>; learnt one <|im_end|> two <|im_end|>
#   truncation_side=left, max_length=9: kept <|im_end|> <|im_start|> user second <|im_end|> <|im_start|> assistant two <|im_end|>; learnt
#   truncation_side=left, max_length=4: kept <|im_start|> assistant two <|im_end|>; learnt
#   truncation_side=right, max_length=9: kept <|im_start|> user first ... one <|im_end|> <|im_start|>; learnt one <|im_end|>
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.17.0 jinja2==3.1.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|> ' + message.role + ' ' }}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + ' <|im_end|>' }}{% endgeneration %}{{ ' ' }}"
    "{% else %}{{ message.content + ' <|im_end|> ' }}{% endif %}{% endfor %}"
)
WORDS = ["<|im_start|>", "<|im_end|>", "user", "assistant", "first", "second", "one", "two"]
CONVERSATION = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "two"},
]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="user"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def learnt(side, length):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, truncation_side=side)
    tokenizer.chat_template = TEMPLATE
    row = tokenizer.apply_chat_template(
        CONVERSATION, return_dict=True, return_assistant_tokens_mask=True, truncation=True, max_length=length
    )
    kept, mask = row["input_ids"], row["assistant_masks"]
    return [WORDS[token] for token in kept], [WORDS[token] for token, is_answer in zip(kept, mask) if is_answer]


as_described = []
ANSWERS = ["one", "<|im_end|>", "two", "<|im_end|>"]
for side, length, seen in [("left", 16, ANSWERS), ("left", 10, ANSWERS), ("left", 9, []), ("left", 4, []), ("right", 9, ANSWERS[:2])]:
    kept, answers = learnt(side, length)
    print(f"truncation_side={side}, max_length={length}: kept {' '.join(kept)}; learnt {' '.join(answers)}")
    as_described.append(answers == seen)
sys.exit(0 if all(as_described) else 1)
PYTHON
