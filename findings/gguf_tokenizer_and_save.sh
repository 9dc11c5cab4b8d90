#!/usr/bin/env bash
# transformers 5.17.0 with gguf 0.19.0: a model read from a GGUF file differs from the model that was written into it, without a warning.
#
# 1. The end token of a tokenizer of architecture `llama` is its begin token (`GGUFLlamaConverter` takes both from the begin id; the
#    declared end token is not read). A chat model then never stops.
# 2. `tokenizer.ggml.pre`, which names how text is cut before tokens are merged, is not read: a file that says `llama-bpe` (numbers in
#    groups of three digits) gets GPT-2's rule, so that numbers become other tokens than in training.
# 3. The loaded model cannot be saved: `save_pretrained` says that it is quantized and not serializable, although its weights are plain fp32
#    tensors.
# 4. Qwen3's `attention.key_length` is not read: the size of a head is 128 whatever the file says.
#
# Output of the last part of this script:
#   declared begin and end: <|im_start|> <|im_end|>; read: <|im_start|> <|im_start|>
#   pieces of x12345: ['x', '12345']
#   saving: ValueError The model is quantized with QuantizationMethod.GGUF and is not serializable
#   head_dim of a Qwen3 file that says 16: 128
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0 gguf==0.19.0 accelerate==1.15.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import numpy as np
from gguf import GGUFWriter
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *[chr(33 + i) for i in range(94)], "Ġ", "12", "34"]
SIZE, HEAD, HEADS = 64, 16, 4


def write(name, architecture):
    writer = GGUFWriter(f"{folder}/{name}", architecture)
    writer.add_string("general.name", "small")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * 3 + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["1 2", "3 4"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    draw = np.random.default_rng(0)
    square = lambda rows: draw.normal(size=(rows, SIZE)).astype(np.float32)
    for tensor in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{tensor}.weight", square(SIZE))
    for tensor in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{tensor}.weight", np.ones(SIZE, dtype=np.float32))
    writer.add_tensor("token_embd.weight", square(len(WORDS)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write("llama.gguf", "llama")
write("qwen3.gguf", "qwen3")
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="llama.gguf")
print(f"declared begin and end: <|im_start|> <|im_end|>; read: {tokenizer.bos_token} {tokenizer.eos_token}")
pieces = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("x12345")]
print("pieces of x12345:", pieces)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="llama.gguf")
try:
    model.save_pretrained(f"{folder}/saved")
    saving = "saved"
except ValueError as error:
    saving = f"ValueError {str(error).split(' - ')[0]}"
print("saving:", saving)
head = AutoConfig.from_pretrained(folder, gguf_file="qwen3.gguf").head_dim
print("head_dim of a Qwen3 file that says 16:", head)
as_described = [
    tokenizer.eos_token == "<|im_start|>",
    pieces == ["x", "12345"],
    saving.startswith("ValueError"),
    head == 128,
]
sys.exit(0 if all(as_described) else 1)
PYTHON
