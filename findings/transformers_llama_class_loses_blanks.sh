#!/usr/bin/env bash
# transformers 5.17.0: `AutoTokenizer.from_pretrained` on a local folder whose `tokenizer.json` is a byte-level BPE (as Llama 3's) and
# whose configuration names `LlamaTokenizerFast` and the model type `llama` (as the published DeepSeek-R1-Distill-Llama) does not load the
# normalizer, pre-tokenizer and decoder of `tokenizer.json`. The class rebuilds them in SentencePiece's form around the vocabulary and the
# merges of the file: blanks and line ends have no tokens there and are dropped without a warning. `PreTrainedTokenizerFast`, or the class
# name `PreTrainedTokenizerFast` in `tokenizer_config.json`, loads the file as it is.
#
# Output of this script:
#   LlamaTokenizer 'Hello world,\n  12 times.' -> 'Helloworld,12times.'
#   TokenizersBackend 'Hello world,\n  12 times.' -> 'Hello world,\n  12 times.'
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.17.0
mkdir "$folder/model"
"$folder/venv/bin/python" - "$folder/model" <<'PYTHON'
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

folder = pathlib.Path(sys.argv[1])
core = Tokenizer(models.BPE())
core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
core.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
)
core.train_from_iterator(["Hello world, hello times"] * 2, trainer)
core.save(str(folder / "tokenizer.json"))
names = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
(folder / "tokenizer_config.json").write_text(json.dumps(names))
(folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))

text = "Hello world,\n  12 times."
found = []
for made in (AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)):
    back = made.decode(made.encode(text, add_special_tokens=False))
    print(f"{type(made).__name__} {text!r} -> {back!r}")
    found.append((type(made).__name__, back))
sys.exit(found != [("LlamaTokenizer", "Helloworld,12times."), ("TokenizersBackend", text)])
PYTHON
