"""What a threshold promises: the laws of foreign documents, by hand, against known truth, and through the pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from surprise_hf.ensemble import Ensemble
from surprise_hf.fitted import FittedLabels
from surprise_hf.scoring import surprise
from surprise_hf.tails import SHARPEST, Law, Tails, belonging


def world(n: int, labels: int = 20, share: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Documents (n, d) of label truth (n,), -1 for none; skewed along every label's direction, as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(labels, (n,), generator=generator)
    truth[torch.rand(n, generator=generator) > share] = -1
    x = 0.15 * torch.randn(n, 48, generator=generator)
    x[:, :labels] += 0.12 * (torch.rand(n, labels, generator=generator).log().neg() - 1)  # exponential, mean 0
    x[:, -1] += 1
    x[torch.arange(n)[truth >= 0], truth[truth >= 0]] += 1.2
    queries = torch.zeros(labels, 48)
    queries[torch.arange(labels), torch.arange(labels)] = 1
    queries[:, -1] = 1
    return x, queries, truth


# --- a law -------------------------------------------------------------------------------------------------------


def test_law_of_normal_values_is_the_identity() -> None:
    z = torch.from_numpy(scipy.stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000))
    law = Law.fit(z, torch.ones_like(z), 200_000)
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(law(x), x, rtol=0, atol=0.02)


def test_law_of_exponential_values() -> None:
    p = (np.arange(100_000) + 0.5) / 100_000
    law = Law.fit(torch.from_numpy(-np.log1p(-p)), torch.ones(100_000), 100_000)
    x = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 6.0])
    want = scipy.stats.norm.isf(np.exp(-x))
    np.testing.assert_allclose(law(torch.from_numpy(x)).numpy(), want, atol=0.01)


def test_law_weighs_values() -> None:
    """Values 10 and up have weight 0: the law is that of the others."""
    z = torch.cat((torch.linspace(-1, 1, 1001), torch.linspace(10, 20, 500)))
    weight = (z < 5).float()
    only = Law.fit(z[z < 5], torch.ones(1001), 1501)
    law = Law.fit(z, weight, 1501)
    x = torch.linspace(-0.95, 0.95, 20)
    torch.testing.assert_close(law(x), only(x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(law(x).numpy(), scipy.stats.norm.ppf((x.numpy() + 1) / 2), atol=0.02)


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0, 1.0], [0.0, 1.0], [-np.inf, 0.0, np.inf], list(range(50))])
def test_law_increases_and_is_never_nan(values: list[float]) -> None:
    z = torch.tensor(values, dtype=torch.float64)
    law = Law.fit(z, torch.ones_like(z), len(z))
    x = torch.tensor([-np.inf, -1e9, -1.0, 0.0, 0.5, 1.0, 49.0, 1e9, np.inf], dtype=torch.float64)
    got = law(x)
    assert not got.isnan().any()
    assert (got.diff() >= 0).all()
    assert got[0] == -np.inf
    assert got[-1] == np.inf


# --- who belongs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agreement", [0.6, 0.8, 1.0])
def test_belonging_is_no_surer_than_the_square_of_the_agreement(agreement: float) -> None:
    z = torch.randn(2000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = belonging(z, agreement)
    torch.testing.assert_close(got.sum(dim=1), torch.ones(2000, dtype=torch.float64))
    sharpest = (SHARPEST * z).softmax(dim=1)
    limit = min(agreement**2, float(sharpest.amax(dim=1).mean()))
    assert float(got.amax(dim=1).mean()) == pytest.approx(limit, abs=0.001)
    if agreement == 1:
        torch.testing.assert_close(got, sharpest)


def test_a_single_label_owns_nothing() -> None:
    assert belonging(torch.randn(9, 1), 1.0).tolist() == [[0.0]] * 9


# --- the promise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refine", [0, "auto"])
@pytest.mark.parametrize("tail", [0.1, 0.03, 0.01])
def test_foreign_documents_reach_a_threshold_as_often_as_promised(refine: int | str, tail: float) -> None:
    documents, queries, _ = world(8000)
    held, _, truth = world(8000, seed=1)
    labels = FittedLabels.fit(queries, documents, estimator="tail", refine=refine)
    foreign = truth.unsqueeze(1) != torch.arange(20)
    reached = ((labels.score(held) >= 1 - tail) & foreign).sum() / foreign.sum()
    assert 0.6 * tail < reached < 1.25 * tail  # where groups are this clear it is on the strict side
    if tail == 0.01:  # where the gaussian is far off
        gaussian = FittedLabels.fit(queries, documents, refine=refine)
        bell = ((gaussian.score(held) >= 1 - tail) & foreign).sum() / foreign.sum()
        assert not 0.6 * tail < bell < 1.25 * tail


def test_documents_whose_label_is_not_offered_are_accepted_as_often_as_promised() -> None:
    documents, queries, _ = world(8000)
    held, _, truth = world(8000, seed=1)
    labels = FittedLabels.fit(queries, documents, estimator="tail")
    assert labels.tails is not None
    z = labels.z(held)
    own = truth.unsqueeze(1) == torch.arange(20)
    others = labels.tails.accept(held, z.masked_fill(own, -9).amax(dim=1))
    assert 0.02 < (others >= 0.95).double().mean() < 0.06
    assert (labels.accept(held) >= 0.95).double().mean() > 0.4
    # the best of twenty foreign scores passes a label's own threshold many times as often
    best = labels.score(held).masked_fill(own, 0).amax(dim=1)
    assert (best >= 0.95).double().mean() > 5 * 0.05


def test_a_strange_document_is_not_accepted() -> None:
    documents, queries, _ = world(4000)
    labels = FittedLabels.fit(queries, documents, estimator="tail")
    of_label = world(400, share=1.0, seed=2)[0]
    strange = of_label.clone()
    strange[:, 30] += 3  # still a label's, but in a direction where no document has been
    assert labels.tails is not None
    assert labels.tails.strangeness(strange).min() > 3 > labels.tails.strangeness(of_label).max() - 3
    assert labels.accept(strange).max() < labels.accept(of_label).median()


def test_strangeness_of_held_out_documents_is_that_of_the_ensembles_own() -> None:
    """With few documents for the dimension, those that made C lie nearer by it, unless that is taken away."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 128, generator=generator) + 1
    labels = FittedLabels.fit(torch.eye(128)[:3], x[:150], estimator="tail")
    assert labels.tails is not None
    held = labels.tails.strangeness(x[150:])
    assert abs(held.mean()) < 0.3
    assert labels.tails.strangeness(x[:150]).mean() < held.mean() - 1


# --- how it is used ----------------------------------------------------------------------------------------------


def test_the_order_of_labels_stays() -> None:
    documents, queries, _ = world(4000)
    tail = FittedLabels.fit(queries, documents, estimator="tail", weight=1)
    plain = FittedLabels.fit(queries, documents, weight=1)
    scores, order = tail.rank(documents)
    assert torch.equal(order, plain.rank(documents)[1])
    assert (scores.diff(dim=1) <= 0).all()
    torch.testing.assert_close(scores, tail.score(documents).gather(1, order))
    torch.testing.assert_close(tail.score(documents), surprise(documents, queries, weight=1, estimator="tail"))
    torch.testing.assert_close(tail.z(documents), plain.z(documents))


@pytest.mark.parametrize("weight", [0.5, 1])
def test_state_device_and_the_crowd(weight: float) -> None:
    documents, queries, _ = world(1000)
    for ensemble in (documents, Ensemble.from_embeddings(documents)):
        labels = FittedLabels.fit(queries, ensemble, estimator="tail", weight=weight)
        again = FittedLabels.from_state(labels.state()).to("cpu")
        assert torch.equal(again.score(documents), labels.score(documents))
        assert torch.equal(again.accept(documents), labels.accept(documents))
        torch.testing.assert_close(labels.score(documents[:1]), labels.score(documents)[:1], rtol=0, atol=1e-6)
        torch.testing.assert_close(labels.accept(documents[:1]), labels.accept(documents)[:1], rtol=0, atol=1e-6)
    state = labels.state()
    del state["tails_usual"]
    with pytest.raises(ValueError, match="tails_"):
        FittedLabels.from_state(state)


def test_auto_takes_the_tail_where_the_gaussian_fails() -> None:
    documents, queries, _ = world(4000)
    found = FittedLabels.fit(queries, documents, estimator="auto")
    assert found.estimator == "tail"
    generator = torch.Generator().manual_seed(0)
    bell = torch.nn.functional.normalize(torch.randn(4000, 64, generator=generator)) + 0.3
    normal = FittedLabels.fit(torch.eye(64)[:1], bell, estimator="auto", weight=1)
    assert normal.estimator == "gaussian"
    torch.testing.assert_close(normal.score(bell), surprise(bell, torch.eye(64)[:1], weight=1))
    assert normal.tails is not None  # for accept
    assert torch.equal(FittedLabels.from_state(normal.state()).accept(bell), normal.accept(bell))


def test_auto_is_gaussian_where_no_tail_can_be_had() -> None:
    documents, queries, _ = world(1000)
    for ensemble, options in (
        (documents[:50], {}),
        (Ensemble.from_embeddings(documents, reservoir=0), {"weight": 1}),
        (documents, {"similarity": "dot"}),
    ):
        found = FittedLabels.fit(queries, ensemble, estimator="auto", **options)
        assert found.estimator == "gaussian"
        assert found.tails is None
        scores = found.rank(documents, 1)[0][:, 0]
        torch.testing.assert_close(found.accept(documents).float(), scores)


@pytest.mark.parametrize(
    "documents", [torch.ones(1, 4), torch.ones(300, 4), torch.zeros(3, 4), torch.eye(4)], ids=["1", "same", "0", "eye"]
)
@pytest.mark.parametrize("labels", [1, 3])
def test_hardly_any_documents_give_no_nan(documents: Tensor, labels: int) -> None:
    found = FittedLabels.fit(torch.eye(4)[:labels] + 0.1, documents, estimator="tail", weight=1)
    for keys in (documents, torch.eye(4)):
        assert not found.score(keys).isnan().any()
        assert not found.accept(keys).isnan().any()


def test_errors() -> None:
    documents, queries, _ = world(300)
    with pytest.raises(ValueError, match="estimator='tail' works on the cosine, not on dot"):
        surprise(documents, queries, estimator="tail", similarity="dot")
    with pytest.raises(ValueError, match="estimator='tail' needs documents"):
        surprise(documents, queries, Ensemble.from_embeddings(documents, reservoir=0), estimator="tail", weight=1)
    with pytest.raises(ValueError, match="lack a part: `tails_"):
        Tails.from_state({})
