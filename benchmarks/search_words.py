"""Recall of BM25 by kind of word: the splitter of the environment `search` beside the default one of `bm25s`.

    python benchmarks/search_words.py

Each kind has six documents and a query for each; all documents are one index. The default splitter takes
words of two characters or more between blanks and signs, as they are written, without the English stop words.

The last line is one JSON object: `recall_1` and `recall_3`, the share of the queries whose document is the
first, or among the first three; `default_1` and `default_3`, the same of the default splitter; `kinds`, for
each kind [`recall_1`, `default_1`].
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import bm25s

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.workflows.search.world.corpus import Document
from agent_system.workflows.search.world.index import BM25Index
from benchmarks.shared.short import parse_args

DEPTHS = (1, 3)
# Pairs of a document and a query for it.
PAIRS: dict[str, list[tuple[str, str]]] = {
    "words as written": [
        ("The lighthouse of Lindau stands beside a lion of stone", "lighthouse of Lindau"),
        ("A caravan of salt leaves Timbuktu in November", "salt caravan Timbuktu"),
        ("The violin maker Amati worked in Cremona", "Amati Cremona violin"),
        ("Peat fires smoulder below the ground for months", "peat fires"),
        ("An abacus counts with beads on rods", "abacus beads"),
        ("The okapi lives in the forests of the Ituri", "okapi Ituri"),
    ],
    "other forms of words": [
        ("Volcanoes erupt where plates move apart", "eruption of a volcano"),
        ("Bakers knead the dough before it rises", "baking: kneaded doughs"),
        ("The glacier melted and flooded the valleys", "melting glaciers"),
        ("A parliament legislates for its provinces", "provincial legislation of parliaments"),
        ("Bees pollinate apricots in spring", "pollination by a bee"),
        ("The translators disagreed on a proverb", "translation of proverbs"),
    ],
    "one character": [
        ("B is a language that came before another one", "what is B"),
        ("Vitamin K helps blood to clot", "vitamin K"),
        ("Vitamin D comes with sunlight", "vitamin D"),
        ("R is used for statistics", "R"),
        ("The number 7 is said to be lucky", "7"),
        ("Route 9 passes the harbour", "route 9"),
    ],
    "signs": [
        ("C++ has classes and templates", "C++"),
        ("C# runs on a virtual machine", "C#"),
        ("F# is a functional language", "F#"),
        ("The node.js runtime serves pages", "node.js"),
        ("AT&T laid the cable", "AT&T"),
        ("A .NET program is compiled", ".NET"),
    ],
    "Chinese and Japanese": [
        ("北京是中国的首都", "中国的首都"),
        ("長江是亞洲最長的河流", "最長的河流"),
        ("富士山は日本で一番高い山です", "日本で一番高い山"),
        ("東京は日本の首都です", "日本の首都"),
        ("熊猫吃竹子", "熊猫"),
        ("新幹線は速い列車です", "速い列車"),
    ],
    "Thai, Khmer, Korean": [
        ("กรุงเทพเป็นเมืองหลวงของประเทศไทย", "เมืองหลวง"),
        ("แม่น้ำโขงไหลผ่านหลายประเทศ", "แม่น้ำ"),
        ("ช้างเป็นสัตว์ที่ใหญ่ที่สุดบนบก", "สัตว์ที่ใหญ่ที่สุด"),
        ("ភ្នំពេញជារាជធានីនៃកម្ពុជា", "រាជធានី"),
        ("서울은 대한민국의 수도이다", "대한민국 수도"),
        ("제주도에는 한라산이 있다", "한라산"),
    ],
    "accents and capitals": [
        ("Zürich liegt am See", "zurich"),
        ("São Paulo has many theatres", "sao paulo"),
        ("The CAFÉ opened at dawn", "cafe dawn"),
        ("Gdańsk built ships", "gdansk ships"),
        ("Dvořák wrote nine symphonies", "dvorak symphonies"),
        ("Köln has a cathedral", "KOLN cathedral"),
    ],
}


def recall(rank: Callable[[str], Sequence[int]]) -> dict[str, dict[int, float]]:
    """Return for each kind the share of queries whose document is among the first k."""
    found: dict[str, dict[int, float]] = {}
    first = 0
    for kind, pairs in PAIRS.items():
        ranks = [rank(query) for _, query in pairs]
        found[kind] = {k: mean(first + number in one[:k] for number, one in enumerate(ranks)) for k in DEPTHS}
        first += len(pairs)
    return found


def default_ranks(texts: Sequence[str]) -> Callable[[str], Sequence[int]]:
    """Return the search of `bm25s` with its own splitter; documents without a word of the query do not
    count.
    """
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(texts), show_progress=False), show_progress=False)

    def rank(query: str) -> list[int]:
        words = bm25s.tokenize([query], return_ids=False, show_progress=False)
        numbers, scores = index.retrieve(words, k=max(DEPTHS), show_progress=False)
        pairs = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return [number for number, score in pairs if score > 0]

    return rank


def main() -> None:
    """Print a table by kind, and the JSON."""
    parse_args(
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    )
    texts = [text for pairs in PAIRS.values() for text, _ in pairs]
    index = BM25Index([Document(str(i), "", text) for i, text in enumerate(texts)])
    ours = recall(lambda query: [number for number, _ in index.search([query], max(DEPTHS))[0]])
    theirs = recall(default_ranks(texts))
    for kind in PAIRS:
        print(f"{kind:24} first {ours[kind][1]:.2f} (default {theirs[kind][1]:.2f})")
    result = {
        f"{name}_{k}": round(mean(one[k] for one in found.values()), 3)
        for name, found in (("recall", ours), ("default", theirs))
        for k in DEPTHS
    }
    kinds = {kind: [round(ours[kind][1], 2), round(theirs[kind][1], 2)] for kind in PAIRS}
    print(json.dumps({**result, "kinds": kinds}, ensure_ascii=False))


if __name__ == "__main__":
    main()
