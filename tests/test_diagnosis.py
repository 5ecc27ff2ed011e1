"""The diagnosis against SciPy and by hand."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from surprise_hf.diagnosis import LEVELS, diagnose, held_out, shape
from surprise_hf.ensemble import Ensemble


def rows(n: int, dim: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64) + 0.3


def cosines(documents: Tensor, queries: Tensor) -> np.ndarray:
    unit = [x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True) for x in (documents, queries)]
    return unit[0] @ unit[1].T


def test_shape_is_scipys() -> None:
    documents, queries = rows(700).exp(), rows(5, seed=1)
    psi = cosines(documents, queries)
    found = diagnose(documents, queries)
    np.testing.assert_allclose(found.mean.numpy(), psi.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.std.numpy(), psi.std(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.skewness.numpy(), scipy.stats.skew(psi), atol=1e-9)
    np.testing.assert_allclose(found.kurtosis.numpy(), scipy.stats.kurtosis(psi), atol=1e-9)
    for i in range(5):
        want = scipy.stats.kstest(psi[:, i], "norm", (psi[:, i].mean(), psi[:, i].std())).statistic
        assert float(found.distance[i]) == pytest.approx(want, abs=1e-9)


def test_noise_is_what_gaussian_samples_stay_below_in_19_of_20() -> None:
    sample = torch.randn(2000, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    limit = diagnose(rows(500), rows(1)).noise
    assert 0.93 < (shape(sample)[4] < limit).double().mean() < 0.97


def test_levels_are_tails_with_one_percent_among_them() -> None:
    found = diagnose(rows(50), rows(2))
    assert found.levels.tolist() == [0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99]
    assert found.rows()[1]["beyond_1_percent"] == float(found.seen[found.levels.tolist().index(0.01), 1])


def test_equal_values_have_no_shape() -> None:
    assert shape(torch.full((2, 5), 0.25)).tolist() == [[0.25, 0.25], *[[0.0, 0.0]] * 4]


def test_held_out_counts_by_brute_force() -> None:
    documents, queries = rows(101), rows(3, seed=1)
    levels = torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0)).numpy()
    psi, want = cosines(documents, queries), np.zeros((3, 3))
    for fit, held in ((order[:51], order[51:]), (order[51:], order[:51])):
        z = (psi[held] - psi[fit].mean(axis=0)) / psi[fit].std(axis=0)
        for i, level in enumerate(levels):
            want[i] += (scipy.stats.norm.sf(z) <= float(level)).sum(axis=0)
    np.testing.assert_allclose(held_out(documents, queries, levels).numpy(), want / 101, atol=1e-12)


def test_gaussian_similarities_are_calibrated_and_skewed_ones_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    bell = torch.nn.functional.normalize(torch.randn(4000, 256, generator=generator))
    found = diagnose(bell, torch.eye(256)[:20])
    assert found.distance.mean() < found.noise
    np.testing.assert_allclose(found.seen.mean(dim=1).numpy(), LEVELS, rtol=0.15)
    bell[:, 0] = 0.1 * torch.rand(4000, generator=generator).log().neg()
    skewed = diagnose(bell, torch.eye(256)[:1])
    assert skewed.skewness[0] > 1
    assert skewed.distance[0] > 5 * skewed.noise
    assert skewed.seen[2, 0] > 0.015  # at 1 %


def test_size_and_names() -> None:
    documents, queries = rows(300), rows(2, seed=1)
    ens = Ensemble.from_embeddings(documents, reservoir=100)
    found = ens.diagnose(queries, ["a rather long name", 7], n_cross=200)
    assert (found.documents, found.sample) == (300, 100)
    assert found.weight == pytest.approx(math.tanh(1.5))
    assert ens.diagnose(queries).weight == pytest.approx(math.tanh(0.3), rel=1e-9)
    assert found.labels == ["a rather long name", "7"]
    lines = str(found).splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["a rather long name", "7".ljust(18).split("  ")[0]]
    assert "300 documents" in lines[-1]
    assert "w = 0.905" in lines[-1]
    assert [row["label"] for row in found.rows()] == found.labels
    assert found.rows()[1]["beyond_1_percent"] == float(found.seen[2, 1])


@pytest.mark.parametrize(("documents", "queries"), [(torch.ones(1, 4), torch.eye(4)), (torch.ones(5, 4), torch.eye(4))])
def test_hardly_anything_is_no_nan(documents: Tensor, queries: Tensor) -> None:
    found = diagnose(documents, queries)
    for value in (found.mean, found.std, found.skewness, found.kurtosis, found.distance, found.seen):
        assert torch.isfinite(value).all()
    assert str(diagnose(documents, queries[:0])).startswith("label")


def test_errors() -> None:
    with pytest.raises(ValueError, match="2 queries but 3 labels"):
        diagnose(rows(5), rows(2), ["a", "b", "c"])
    with pytest.raises(ValueError, match="a diagnosis needs documents"):
        diagnose(Ensemble.from_embeddings(rows(5), reservoir=0), rows(2))
    with pytest.raises(ValueError, match="the ensemble has 16 dimensions, but queries have 3"):
        diagnose(rows(5), rows(2, 3))


def test_a_name_stays_in_its_line_of_the_table() -> None:
    names = ["two\nlines", "long " * 40, ""]
    lines = str(diagnose(rows(50), rows(3, seed=1), names)).splitlines()
    assert len(lines) == 5
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[1].startswith("two lines ")
    assert diagnose(rows(50), rows(3, seed=1), names).labels == names


def test_labels_of_an_enum_are_named_by_their_values() -> None:
    topic = Enum("Topic", {"SPORTS": "sports", "NEWS": "news"}, type=str)
    assert diagnose(rows(50), rows(2, seed=1), list(topic)).labels == ["sports", "news"]


def test_no_gradient_is_kept() -> None:
    found = diagnose(rows(50).requires_grad_(), rows(2).requires_grad_())
    assert not any(value.requires_grad for value in (found.mean, found.std, found.distance, found.seen))
