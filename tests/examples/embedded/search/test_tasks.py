import re
from collections import Counter

import pyarrow.parquet as pq
import pytest

from agent_system import AgentSystemError
from agent_system.workflows.search.world import load_corpus
from agent_system.workflows.search.world.corpus import Document
from agent_system.workflows.search.world.index import BM25Index
from examples.embedded.data import main
from examples.embedded.search.tasks import PARTS, generate_split, make_part, names_of, to_document, to_row

NAME = re.compile(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b")


def names_in(texts) -> set[str]:
    return {name for text in texts for name in NAME.findall(text)}


def test_questions_are_answered_by_the_facts_they_name_and_the_corpus_holds_them():
    corpus, train, test = generate_split(200, 40, 0)
    assert (len(train), len(test)) == (200, 40)
    assert {len(question.hops) for question in train} == {1, 2}
    assert sum(len(question.hops) == 2 for question in train) == 100
    for question in (*train, *test):
        assert set(question.hops) <= set(corpus)
        assert question.hops[-1].value == question.answer
        assert question.hops[0].subject in question.text
        if len(question.hops) == 2:
            assert question.hops[1].subject == question.hops[0].value
            assert question.hops[1].subject not in question.text


def test_no_name_of_training_occurs_in_testing_or_in_demonstrations():
    _, train, test = generate_split(300, 60, 3)
    said = [names_in([str(fact) for q in part for fact in q.hops]) for part in (train, test)]
    assert said[0] and said[1] and not said[0] & said[1]
    parts = [set(names_of(part, 3)) for part in PARTS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 3600


def test_demonstrations_put_most_pairs_of_words_together_so_that_no_unseen_pair_looks_wrong():
    first, last = zip(*(name.split() for name in names_of("demos", 3)), strict=True)
    for words in (first, last):
        seen = Counter(words)
        assert len(seen) == 60
        assert min(seen.values()) > 30


def test_the_seed_decides():
    assert generate_split(30, 10, 1) == generate_split(30, 10, 1) != generate_split(30, 10, 2)


@pytest.mark.parametrize("two_hop", [0.0, 1.0])
def test_all_questions_may_be_of_one_kind(two_hop):
    _, questions = make_part("train", 50, 0, two_hop)
    assert {len(question.hops) for question in questions} == {1 + int(two_hop)}
    assert len({question.text for question in questions}) == 50


def test_more_questions_than_there_are_names_for_is_an_error():
    with pytest.raises(AgentSystemError, match="ask for fewer questions"):
        generate_split(4000, 10, 0)


def test_the_query_of_every_fact_finds_it_first():
    corpus, _, test = generate_split(200, 40, 0)
    documents = [Document(**to_document(fact, i)) for i, fact in enumerate(corpus)]
    facts = [fact for question in test for fact in question.hops]
    hits = BM25Index(documents).search([fact.query for fact in facts], 1)
    assert [documents[found[0][0]].text for found in hits] == [str(fact) for fact in facts]


def test_a_row_is_in_verls_schema_with_the_queries_that_lead_to_its_answer():
    _, _, test = generate_split(10, 4, 0, two_hop=1.0)
    row = to_row(test[0], 0, "test")
    assert row["prompt"] == [{"role": "user", "content": test[0].text}]
    assert row["reward_model"]["ground_truth"] == test[0].answer
    assert len(row["extra_info"]["queries"]) == row["extra_info"]["hops"] == 2


def test_the_generated_set_is_written_with_its_corpus(tmp_path):
    main(
        ["search", "--out", str(tmp_path), "--seed", "1", "--train", "20", "--test", "8", "--two-hop", "0.25"]
    )
    rows = [pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test")]
    assert [len(part) for part in rows] == [20, 8]
    assert sum(row["extra_info"]["hops"] == 2 for row in rows[0]) == 5
    texts = {document.text for document in load_corpus(tmp_path / "corpus.jsonl")}
    assert all(fact in texts for part in rows for row in part for fact in row["extra_info"]["facts"])
