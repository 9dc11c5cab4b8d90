#!/usr/bin/env bash
# rank-bm25 0.2.2: `BM25L` counts the frequency of a term twice. The score of the paper (Lv and Zhai, 2011) takes the frequency, normalized
# by the length, through a curve that levels off; the library multiplies this once more by the frequency itself, so that a document which
# repeats a word of the query wins over one that has all of its words. bm25s 0.3.16 (`method="bm25l"`, the same k1, b and delta) gives the
# paper's score where the document has the word; where it has not, the paper and rank-bm25 add 0, bm25s the curve's value at 0. The two
# libraries agree about BM25+.
#
# Output of the last part of this script (documents of four words, the query "red apple"):
#   red apple on trees: BM25L of rank-bm25 2.19, of bm25s 2.19; BM25Plus 4.39, 4.39
#   red red red sky: BM25L of rank-bm25 4.60, of bm25s 2.08; BM25Plus 4.03, 4.03
#   apple pie for two: BM25L of rank-bm25 1.09, of bm25s 1.64; BM25Plus 3.30, 3.30
#   green tea at noon: BM25L of rank-bm25 0.00, of bm25s 1.09; BM25Plus 2.20, 2.20
#   one cup of milk: BM25L of rank-bm25 0.00, of bm25s 1.09; BM25Plus 2.20, 2.20
#   the score of 'red' over that of bm25s: 1.00 where it stands once, 3.00 where it stands three times
#   first by rank-bm25: red red red sky - by bm25s: red apple on trees
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check rank-bm25==0.2.2 bm25s==0.3.16
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import bm25s
import numpy as np
from rank_bm25 import BM25L, BM25Plus

DOCUMENTS = ["red apple on trees", "red red red sky", "apple pie for two", "green tea at noon", "one cup of milk"]
QUERY = ["red", "apple"]
words = [document.split() for document in DOCUMENTS]


def of_bm25s(method, delta, query):
    index = bm25s.BM25(method=method, k1=1.5, b=0.75, delta=delta)
    index.index(words, show_progress=False)
    return index.get_scores(query)


plus = BM25Plus(words, k1=1.5, b=0.75, delta=1).get_scores(QUERY), of_bm25s("bm25+", 1.0, QUERY)
light = BM25L(words, k1=1.5, b=0.75, delta=0.5).get_scores(QUERY), of_bm25s("bm25l", 0.5, QUERY)
for place, document in enumerate(DOCUMENTS):
    print(
        f"{document}: BM25L of rank-bm25 {light[0][place]:.2f}, of bm25s {light[1][place]:.2f}; "
        f"BM25Plus {plus[0][place]:.2f}, {plus[1][place]:.2f}"
    )
red = BM25L(words, k1=1.5, b=0.75, delta=0.5).get_scores(["red"]), of_bm25s("bm25l", 0.5, ["red"])
ratios = [(red[0][place] / red[1][place]).item() for place in (0, 1)]
print(f"the score of 'red' over that of bm25s: {ratios[0]:.2f} where it stands once, {ratios[1]:.2f} where it stands three times")
print("first by rank-bm25:", DOCUMENTS[int(np.argmax(light[0]))], "- by bm25s:", DOCUMENTS[int(np.argmax(light[1]))])
first = [int(np.argmax(scores)) for scores in light]
sys.exit(first != [1, 0] or not np.allclose(ratios, [1, 3], atol=1e-3) or not np.allclose(*plus, atol=1e-3))
PYTHON
