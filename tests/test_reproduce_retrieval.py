"""examples/reproduce/retrieval.py: its readers on small sets, its measures against scikit-learn, and a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from tests.index_data import clouds, unit, z_matrix
from tests.reproduce_data import call, scripts

DOCUMENTS = {"a": "sport ball game", "b": "money bank price", "c": "bread soup cheese", "d": "dog cat horse", "e": ""}
QUERIES = {"1": "team win goal", "2": "cook taste food", "3": "nothing fits"}
RELEVANCE = {"1": {"a": 2, "b": 0, "d": 1}, "2": {"c": 1, "e": 1}, "3": {"a": 0}}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts(monkeypatch, "retrieval")[0]


def write_beir(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    rows = [
        {"_id": i, "title": text.split(" ")[0], "text": " ".join(text.split(" ")[1:])} for i, text in DOCUMENTS.items()
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": i, "text": x}) + "\n" for i, x in QUERIES.items()))
    pairs = [f"{query}\t{i}\t{value}\n" for query, some in RELEVANCE.items() for i, value in some.items()]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))


SMART = {
    "cran.all.1400": ".I 1\r\n.T\r\nsport\r\n.A\r\nsomeone\r\n.B\r\n1958\r\n.W\r\nball\r\n  game\r\n"
    ".I 2\n.T\nmoney\n.W\nbank price\n.I 3\n.W\nbread soup cheese\n.X\n1 5 1\n"
    ".I 4\n.W\ndog cat horse\n.I 5\n.T\n.W\n",
    "cran.qry": ".I 001\n.W\nteam win\ngoal\n.I 004\n.T\na title\n.W\ncook taste food\n.I 009\n.W\nnothing fits\n",
    "cranqrel": "1 1 2\n1 2 -1\r\n1  4\t4\n2 3 1\n2 5 1\n3 1 -1\n",
}
TREC = {
    "doc-text.trec": "".join(f"<DOC>\n<DOCNO>{i}</DOCNO>\n{text}\n</DOC>\n" for i, text in DOCUMENTS.items()),
    "query-text.trec": "".join(
        f"<top>\n<num>{i}</num><title>\n{x.upper()}\n</title>\n</top>\n" for i, x in QUERIES.items()
    ),
    "qrels": "".join(f"{q} 0 {i} {value}\n" for q, some in RELEVANCE.items() for i, value in some.items()),
}


@pytest.mark.parametrize("form", ["beir", "smart", "trec"])
def test_readers(script: ModuleType, tmp_path: Path, form: str) -> None:
    """Blank documents, questions without a relevant document, and judgements of no interest are left out."""
    if form == "beir":
        write_beir(tmp_path)
    for name, text in {"smart": SMART, "trec": TREC}.get(form, {}).items():
        (tmp_path / name).write_bytes(text.encode())
    data = script.load(tmp_path)
    names = dict(zip("abcd", "1234" if form == "smart" else "abcd", strict=True))
    assert data.documents == {names[i]: text for i, text in DOCUMENTS.items() if text}
    assert data.queries == {"1": "team win goal", "2": "cook taste food"}
    assert data.relevance == {"1": {names["a"]: 1 if form == "smart" else 2, names["d"]: 1}, "2": {names["c"]: 1}}
    assert list(script.load(tmp_path, 1).queries) in (["1"], ["2"])
    with pytest.raises(SystemExit, match="holds no set"):
        script.load(tmp_path / "nowhere")


@pytest.mark.parametrize("relevant", [1, 4, 30])
def test_ndcg_is_scikit_learns(script: ModuleType, relevant: int) -> None:
    rng = np.random.default_rng(relevant)
    for _ in range(20):
        scores, gains = rng.permutation(200).astype(float), np.zeros(200)
        gains[rng.choice(200, relevant, replace=False)] = rng.integers(1, 4, relevant)
        ranked = [str(i) for i in np.argsort(-scores)][:100]
        judged = {str(i): int(gains[i]) for i in np.flatnonzero(gains)}
        found, recall = script.measure(ranked, judged)
        assert found == pytest.approx(ndcg_score(gains[None], scores[None], k=10), abs=1e-12)
        assert recall == pytest.approx((gains[np.argsort(-scores)[:100]] > 0).sum() / relevant)


def test_ndcg_by_hand(script: ModuleType) -> None:
    ndcg, recall = script.measure(["x", "b", "y", "a"], {"a": 3, "b": 1, "absent": 1})
    ideal = 3 + 1 / math.log2(3) + 1 / 2
    assert ndcg == pytest.approx((1 / math.log2(3) + 3 / math.log2(5)) / ideal)
    assert recall == pytest.approx(2 / 3)
    assert script.measure([], {"a": 1}) == (0, 0)


def test_the_ways_rank_as_the_definition_says(script: ModuleType) -> None:
    documents, queries = clouds(500), clouds(30, seed=1)
    names = [str(i) for i in range(500)]
    relevance = {str(i): {str(j): 1 for j in range(i, 500, 37)} for i in range(30)}
    data = script.JudgedSet(dict.fromkeys(names, "text"), dict.fromkeys(relevance, "text"), relevance)
    found = script.run(data, documents, queries)
    values = {
        "cosine": unit(queries) @ unit(documents).T,
        "surprise, questions as q": unit(queries) @ unit(documents).T,
        "documents as q, among documents": z_matrix(queries, documents, documents),
        "documents as q, among questions": z_matrix(queries, documents, queries),
    }
    assert set(found) == set(values)
    truth = np.array([[relevance[str(i)].get(name, 0) for name in names] for i in range(30)])
    for way, matrix in values.items():
        assert found[way]["ndcg"] == pytest.approx(100 * ndcg_score(truth, matrix.numpy(), k=10), abs=1e-6)
        best = matrix.topk(100, dim=1).indices.numpy()
        recall = np.take_along_axis(truth, best, axis=1).sum(axis=1) / truth.sum(axis=1)
        assert found[way]["recall"] == pytest.approx(100 * recall.mean(), abs=1e-6)
    gain = found["documents as q, among questions"]["ndcg"] - found["cosine"]["ndcg"]
    low, high = found["documents as q, among questions"]["interval"]
    assert found["documents as q, among questions"]["gain"] == pytest.approx(gain)
    assert low < gain < high
    assert found["surprise, questions as q"]["interval"] == (0, 0)


def test_from_end_to_end(
    script: ModuleType, st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_beir(tmp_path / "data" / "small")
    rest = ("--data", tmp_path / "data", "--sets", "small", "--out", tmp_path / "out")
    call(script, monkeypatch, *rest, "--model", f"tiny={st_path},query:_", "--passages", "tiny=passage:_")
    result = json.loads((tmp_path / "out" / "retrieval.json").read_text())
    assert [(row["set"], row["model"], row["documents"], row["questions"]) for row in result["rows"]] == [
        ("small", "tiny", 4, 2)
    ]
    text = (tmp_path / "out" / "retrieval.md").read_text()
    assert "| small | 4 | 2 | tiny |" in text
    assert text.strip() in capsys.readouterr().out
    # two caches: questions and passages have prompts of their own
    assert len(list((tmp_path / "out" / "embeddings").iterdir())) == 2
    emb = script.Encoder(f"tiny={st_path},passage:_", tmp_path / "out" / "embeddings")(["sport ball game"])
    model = script.Encoder(f"tiny={st_path}", tmp_path / "x").open()
    torch.testing.assert_close(emb, model.encode(["passage: sport ball game"], convert_to_tensor=True).cpu())
    with pytest.raises(SystemExit):
        call(script, monkeypatch, "--data", "hub", "--sets", "small")
