import gzip
import json

import pytest

from agent_system.workflows.search.world.corpus import CorpusError, Document, load_corpus, split_contents


def test_both_forms_of_a_document_are_read(corpus):
    first, _, third, fourth = load_corpus(corpus)
    assert first == Document("0", "Tamo", "The author of Tamo is Kilu.")
    assert third == Document("3", "Kilu", "The birthplace of Kilu is Dena."), (
        "without an id it has the number of its line"
    )
    assert (fourth.title, fourth.contents) == ("", "Dena is a town.")
    assert third.contents == '"Kilu"\nThe birthplace of Kilu is Dena.'


def test_a_packed_corpus_is_read(corpus, tmp_path):
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    assert load_corpus(packed) == load_corpus(corpus)
    packed.write_bytes(gzip.compress(corpus.read_bytes())[:-20])
    with pytest.raises(CorpusError, match="cannot be read: EOFError"):
        load_corpus(packed)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ('"A"\nb\nc', ("A", "b\nc")),
        ("a line", ("", "a line")),
        ("no title\nbut two lines", ("", "no title\nbut two lines")),
        ('"A"\n  ', ("", '"A"')),
        ('"\nb', ("", '"\nb')),
    ],
)
def test_a_title_is_a_first_line_in_quotes(contents, expected):
    assert split_contents(contents) == expected


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"id": "7", "title": "x"}', "found the fields id, title, of which none is a text"),
        ('{"id": "7", "contents": "  "}', "found the fields id, contents"),
        ('{"id": "7", "text": 3}', "found the fields id, text"),
        ("{}", "found the fields none"),
        ('["a"]', "found list"),
        ("{not json", "not JSON"),
    ],
)
def test_a_document_without_its_fields_is_named_with_file_and_line(tmp_path, line, found):
    path = tmp_path / "wiki.jsonl"
    path.write_text(json.dumps({"id": "1", "contents": "fine"}) + "\n\n" + line + "\n")
    with pytest.raises(CorpusError, match=r"wiki\.jsonl, line 3") as error:
        load_corpus(path)
    assert found in str(error.value)
    assert '"contents"' in str(error.value)


def test_no_file_and_no_document_are_named(tmp_path):
    with pytest.raises(CorpusError, match=r"no corpus .*missing"):
        load_corpus(tmp_path / "missing.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(CorpusError, match="holds no document"):
        load_corpus(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorpusError, match="cannot be read: UnicodeDecodeError"):
        load_corpus(tmp_path / "binary.jsonl")
