"""BM25 finds what people ask for: words of one character, names with signs, inflected words, scripts without
blanks.
"""

from __future__ import annotations

import pytest

from agent_system.workflows.search.world.corpus import Document

pytest.importorskip("regex", reason="needs the extra search")

from agent_system.workflows.search.world.index import BM25Index
from agent_system.workflows.search.world.words import WordSplitter

# Document -> queries whose best hit it is.
DOCUMENTS: dict[str, tuple[str, ...]] = {
    "C is a programming language from 1972.": ("what is C", "C"),
    "C++ is a programming language with classes.": ("C++", "classes of C++?"),
    "C# runs on the .NET platform.": ("C#", ".NET", "what is c# for"),
    "R is used for statistics.": ("R", "statistic"),
    "7 is the number of wonders.": ("7", "wonder"),
    "Seven is a film.": ("films called seven",),
    "3.14 is near pi.": ("3.14",),
    "北京是中国的首都。": ("中国的首都", "北京", "京"),
    "東京は日本の首都です。": ("日本の首都", "東京"),
    "กรุงเทพเป็นเมืองหลวงของประเทศไทย": ("เมืองหลวง", "ประเทศไทย"),
    "서울은 대한민국의 수도이다.": ("대한민국 수도", "서울"),
    "ភ្នំពេញជារាជធានីនៃកម្ពុជា": ("កម្ពុជា",),
    "Москва является столицей России.": ("Москва", "москва"),
    "Η Αθήνα είναι πόλη.": ("Αθηνα",),
    "The Who are an English rock band.": ("The Who", "bands"),
    "It is a novel by Stephen King.": ("Stephen King's novels",),
    "AC/DC played in Sydney.": ("AC/DC", "ac dc"),
    "P!nk sang at the gala.": ("P!nk",),
    "R.E.M. came from Athens, Georgia.": ("REM", "R.E.M."),
    "Beyoncé grew up in Houston.": ("beyonce", "Beyoncé"),
    "Blink-182 toured for years.": ("blink 182", "Blink-182"),
    "Many languages are spoken in Papua.": ("language of papua", "language spoken"),
    "He was running a running race.": ("runs", "run"),
    "O'Brien wrote about policemen.": ("O’Brien",),
    "Ｆｕｌｌ width letters.": ("full widths",),
    "Straße means street.": ("STRASSE", "streets"),
    "The tower has 1,665 steps.": ("1665", "1,665", "tower of 1665 steps"),
    "It cost 12345.50 dollars.": ("12,345.50",),
    "The X-ray was found in 1895.": ("x ray", "X-rays"),
    "Łódź is a city of mills.": ("Lodz", "łódź", "LODZ"),
    "Søren lived by the Øresund.": ("Soren", "oresund", "SØREN"),
    "Þingvellir is a park in Iceland.": ("Thingvellir",),
    "The Œuvre of an Ærø painter.": ("oeuvre", "aero painter"),
    "Diyarbakır lies on a river.": ("Diyarbakir", "DİYARBAKIR"),
    "العَرَبِيَّةُ لُغَةٌ.": ("العربية", "العـــربية"),
    "أحمد كاتب": ("احمد",),
    "שָׁלוֹם עֲלֵיכֶם": ("שלום עליכם", "שלום"),
    "A com\u00adput\u00ading cen\u00adtre.": ("computing centre",),
    "An un\u2060break\ufeffable word.": ("unbreakable",),
}


def test_the_document_comes_first() -> None:
    index = BM25Index([Document(str(number), "", text) for number, text in enumerate(DOCUMENTS)])
    queries = {query: number for number, asked in enumerate(DOCUMENTS.values()) for query in asked}
    hits = index.search(list(queries), 3)
    missed = {
        query: row
        for (query, number), row in zip(queries.items(), hits, strict=True)
        if not row or row[0][0] != number
    }
    assert not missed, f"{len(missed)} of {len(queries)}"
    assert [index.search([query], 3)[0] for query in queries] == hits


@pytest.mark.parametrize("query", ["", " ", "?!", "zebra", "漢", "\u200b", "\x00"])
def test_a_query_without_a_word_of_the_corpus_finds_nothing(query: str) -> None:
    assert BM25Index([Document("0", "", "C is a language."), Document("1", "", "")]).search(
        [query, "C"], 2
    ) == [
        [],
        [(0, pytest.approx(0.3, 1))],
    ]


def test_a_corpus_without_words_finds_nothing() -> None:
    assert BM25Index([Document("0", "", ""), Document("1", "", "...")]).search(["a"], 2) == [[]]


def test_words_are_stems_and_neighbouring_characters() -> None:
    words = WordSplitter()
    assert words.of("The cats' C++ (3.5)") == ["cat", "c++", "3.5"]
    assert words.of("1,234,567.5 1,23 1,2345 0,123,4") == ["1234567.5", "1,23", "1,2345", "0,123,4"]
    assert words.of("北京市") == ["北", "京", "市", "北京", "京市"]
    assert WordSplitter("").of("languages") == ["languages"]
