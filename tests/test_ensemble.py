"""Ensemble: the moments of any query from (count, mean, scatter), the uniform sample, copies, ranks."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surprise_hf import ops
from surprise_hf.ensemble import Ensemble
from tests.ensemble_data import bits, direct, rows

# --- moments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("precision", "rtol"), [("fast", 1e-6), ("exact", 1e-12)])
def test_moments_equal_the_direct_pass(normalize: bool, precision: str, rtol: float) -> None:
    dtype = torch.float64 if precision == "exact" else torch.float32
    x, q = rows(700, dtype=dtype), rows(9, seed=1, dtype=dtype)
    ens = Ensemble.from_embeddings(x, normalize=normalize, precision=precision)
    mean, std = ens.moments(q)
    true_mean, true_std = direct(x, q, normalize)
    assert mean.dtype == std.dtype == torch.float64
    torch.testing.assert_close(mean, true_mean, rtol=rtol, atol=rtol)
    torch.testing.assert_close(std, true_std, rtol=rtol, atol=0)


def test_covariance_is_that_of_the_unit_rows() -> None:
    x = rows(50, 3, dtype=torch.float64)
    unit = x / x.norm(dim=1, keepdim=True)
    ens = Ensemble.from_embeddings(x, precision="exact")
    torch.testing.assert_close(ens.covariance, torch.cov(unit.T, correction=0), rtol=1e-12, atol=1e-15)
    assert len(ens) == 50


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    exact=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_batching_and_any_order_of_merging_give_the_same_moments(sizes, order, exact, seed) -> None:
    precision, dtype, rtol = ("exact", torch.float64, 1e-12) if exact else ("fast", torch.float32, 1e-6)
    x, q = rows(sum(sizes) + 3, 6, seed, dtype), rows(4, 6, seed + 1, dtype)
    whole = Ensemble.from_embeddings(x, precision=precision)
    batched = Ensemble(6)
    parts = []
    for batch in x.split([*sizes, 3]):
        batched.update(batch, precision=precision)
        parts.append(Ensemble(6, seed=len(parts)).update(batch, precision=precision))
    order.shuffle(parts)
    while len(parts) > 1:  # a random tree of merges
        other = parts.pop(order.randrange(len(parts)))
        parts[order.randrange(len(parts))].merge(other)
    true_mean, true_std = whole.moments(q)
    for ens in (batched, parts[0]):
        assert len(ens) == len(x)
        mean, std = ens.moments(q)
        torch.testing.assert_close(mean, true_mean, rtol=0, atol=rtol)
        torch.testing.assert_close(std, true_std, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
@pytest.mark.parametrize("n", [1, 2, 10])
def test_identical_documents_have_no_deviation(n: int, scale: float) -> None:
    x = rows(1).mul(scale).repeat(n, 1)
    mean, std = Ensemble.from_embeddings(x).moments(torch.cat((x[:1], rows(3, seed=5))))
    assert (std == 0).all()
    assert mean[0] == pytest.approx(1.0, abs=1e-6)


def stretched() -> Tensor:
    """One document at several lengths: the unit rows differ in their last float32 bits only."""
    return rows(1) * torch.tensor([[1.0], [3.0], [0.1], [7e10]])


def test_same_direction_at_other_lengths_is_the_same_document(tmp_path: Path) -> None:
    ens = Ensemble(12)
    for row in stretched():
        ens.update(row[None])
    ens.update(stretched()[:1].double())
    ens.save(tmp_path / "e")
    # float64 queries do not make float32 documents finer, nor do later documents
    for twin in (ens, Ensemble(12).merge(ens), ens.without_reservoir(), Ensemble.load(tmp_path / "e")):
        for dtype in (torch.float32, torch.float64):
            assert (twin.moments(rows(5, seed=2, dtype=dtype))[1] == 0).all()


def test_zero_documents_zero_rows_and_zero_queries_give_zeros() -> None:
    empty = Ensemble(12)
    empty.update(rows(0))
    assert len(empty) == 0
    assert bool(empty)
    for ens in (empty, Ensemble.from_embeddings(torch.zeros(5, 12))):
        mean, std = ens.moments(rows(3))
        assert (mean == 0).all()
        assert (std == 0).all()
        assert (ens.covariance == 0).all()
    mean, std = Ensemble.from_embeddings(rows(9)).moments(torch.zeros(2, 12))
    assert (mean == 0).all()
    assert (std == 0).all()
    assert empty.moments(rows(0))[0].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_embeddings(dtype: torch.dtype) -> None:
    x, q = rows(300, dtype=dtype), rows(4, seed=1, dtype=dtype)
    mean, std = Ensemble.from_embeddings(x).moments(q)
    true_mean, true_std = direct(x, q)
    torch.testing.assert_close(mean, true_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(std, true_std, rtol=1e-6, atol=0)


def test_moments_agree_with_the_op() -> None:
    x, q = rows(500), rows(6, seed=1)
    for ours, theirs in zip(Ensemble.from_embeddings(x).moments(q), ops.cosine_moments(x, q), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("count", [8, 900])  # looked at before the update, and by what it does
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_a_row_that_is_not_finite_is_named_and_changes_nothing(
    bad: float, count: int, normalize: bool, precision: str
) -> None:
    ens = Ensemble(12, normalize=normalize).update(rows(20))
    before = {name: x.clone() for name, x in bits(ens).items()}
    x = rows(count)
    x[3, 2] = x[6, 0] = bad
    with pytest.raises(ValueError, match=r"emb: row 3, 6 holds NaN or infinity"):
        ens.update(x, precision)
    assert all(torch.equal(x, before[name]) for name, x in bits(ens).items())


def test_huge_but_finite_rows_pass() -> None:
    x = torch.full((9, 4), 3e38)
    mean, _ = Ensemble.from_embeddings(x).moments(torch.ones(1, 4))
    assert mean.item() == pytest.approx(1.0, abs=1e-6)
    wide = torch.full((9, 4), 1e300, dtype=torch.float64)
    assert torch.isfinite(Ensemble.from_embeddings(wide).reservoir).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.update(rows(3, 5)), ValueError, r"emb must have shape \(rows, 12\), got \(3, 5\)"),
        (lambda e: e.update(rows(3)[0]), ValueError, "emb must have shape"),
        (lambda e: e.update([[1.0] * 12]), TypeError, "emb must be a torch.Tensor, got list"),
        (lambda e: e.update(torch.ones(3, 12, dtype=torch.int64)), TypeError, "floating"),
        (lambda e: e.update(rows(3), precision="best"), ValueError, "precision must be one of"),
        (lambda e: e.moments(rows(3, 5)), ValueError, "queries must have shape"),
        (lambda e: e.merge(Ensemble(5)), ValueError, "dim 12 and 5"),
        (lambda e: e.merge(Ensemble(12, normalize=False)), ValueError, "normalize True and False"),
        (lambda e: e.merge(Ensemble(12, encoder="b")), ValueError, "different encoders, 'a' and 'b'"),
        (lambda e: e.merge(rows(3)), TypeError, "merge takes an Ensemble, got Tensor; embeddings go to `update`"),
        (lambda e: e.merge("a path"), TypeError, "merge takes an Ensemble, got str"),
        (lambda _: Ensemble(4, normalize="false"), ValueError, "normalize must be True or False, got 'false'"),
        (lambda _: Ensemble(4, normalize=0), ValueError, "normalize must be True or False, got 0"),
        (lambda _: Ensemble(4, seed=1.5), ValueError, "seed must be an integer of 64 bits, got 1.5"),
        (lambda _: Ensemble(4, seed=1 << 63), ValueError, "seed must be an integer of 64 bits"),
        (lambda _: Ensemble(4, seed="1"), ValueError, "seed must be an integer of 64 bits"),
        (lambda _: Ensemble(4, seed=True), ValueError, "seed must be an integer of 64 bits"),
        (lambda _: Ensemble(0), ValueError, "dim must be a positive integer"),
        (lambda _: Ensemble(4.0), ValueError, "dim must be a positive integer"),
        (lambda _: Ensemble(4, reservoir=1.5), ValueError, r"reservoir \(0 for none\) must be"),
        (lambda _: Ensemble(4, reservoir="8"), ValueError, r"reservoir \(0 for none\) must be"),
        (lambda _: Ensemble(4, reservoir=-1), ValueError, r"reservoir \(0 for none\) must be"),
    ],
)
def test_errors_say_what_is_wrong(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call(Ensemble(12, encoder="a"))


@pytest.mark.parametrize("seed", [-(1 << 63), (1 << 63) - 1, -1])
def test_any_seed_of_64_bits(seed: int) -> None:
    assert len(Ensemble(12, reservoir=5, seed=seed).update(rows(20)).reservoir) == 5


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("scale", [1e20, 1e170])
def test_dot_products_out_of_range(n: int, dtype: torch.dtype, precision: str, scale: float) -> None:
    """Rows that are finite where their squares are not: refused, or right where float64 holds them."""
    if scale > 1e38 and dtype == torch.float32:
        scale = 1e30
    small = rows(n, dtype=torch.float64)
    big, ens = (small * scale).to(dtype), Ensemble(12, normalize=False).update(rows(50))
    before = bits(ens.without_reservoir())
    squared = ops.build_info()["cpu_features"] != "amx"  # whose digits never leave their range
    if scale == 1e170 or (precision == "fast" and dtype == torch.float32 and squared):
        advice = 'or pass precision="exact"' if dtype == torch.float32 else "scale the rows$"
        with pytest.raises(ValueError, match=rf"emb: the squares of \de\+\d+ are out of range: .*{advice}"):
            ens.update(big, precision=precision)
        assert all(torch.equal(before[name], bits(ens)[name]) for name in ("count", "mean", "scatter"))
        assert len(ens.reservoir) == 50
    else:
        mean, std = Ensemble(12, normalize=False).update(big, precision=precision).moments(big[:4])
        true_mean, true_std = direct(small, small[:4], normalize=False)
        torch.testing.assert_close(mean / scale**2, true_mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(std / scale**2, true_std, rtol=1e-6, atol=0)


def test_repr_says_what_it_holds() -> None:
    ens = Ensemble.from_embeddings(rows(1234), reservoir=100, encoder="some/model")
    assert repr(ens) == (
        "Ensemble(1,234 documents, dim=12, reservoir=100/100, normalize=True, encoder='some/model', device=cpu)"
    )


# --- the reservoir -----------------------------------------------------------------------------------------------


def numbered(start: int, n: int) -> Tensor:
    """Rows that carry their number in column 0."""
    return torch.stack((torch.arange(start, start + n, dtype=torch.float32), torch.ones(n)), dim=1)


def members(ens: Ensemble) -> list[int]:
    return sorted(int(x) for x in ens.reservoir[:, 0])


def test_a_small_ensemble_is_kept_whole_as_given() -> None:
    x = rows(30)
    kept = Ensemble.from_embeddings(x, reservoir=30).reservoir
    assert kept.dtype == torch.float32
    assert sorted(kept.tolist()) == sorted(x.tolist())


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=6), seed=st.integers(-5, 5), size=st.integers(0, 60))
def test_the_sample_does_not_depend_on_the_batches(cuts: list[int], seed: int, size: int) -> None:
    x = numbered(0, 200)
    whole = Ensemble.from_embeddings(x, reservoir=size, seed=seed)
    batched = Ensemble(2, reservoir=size, seed=seed)
    edges = [0, *sorted(cuts), 200]
    for start, end in itertools.pairwise(edges):
        batched.update(x[start:end])
    assert torch.equal(whole.reservoir, batched.reservoir)
    assert len(set(members(whole))) == size


def by_update(seed: int) -> Ensemble:
    ens = Ensemble(2, reservoir=6, seed=seed)
    for start, n in ((0, 3), (3, 9), (12, 1), (13, 11)):
        ens.update(numbered(start, n))
    return ens


def by_merge(seed: int) -> Ensemble:
    """Parts of unequal size, one of them larger than the reservoir, in a tree."""
    left = Ensemble(2, reservoir=6, seed=3 * seed).update(numbered(0, 4))
    right = Ensemble(2, reservoir=6, seed=3 * seed + 1).update(numbered(4, 15))
    third = Ensemble(2, reservoir=6, seed=3 * seed + 2).update(numbered(19, 5))
    return left.merge(right.merge(third))


@pytest.mark.parametrize("build", [by_update, by_merge])
def test_every_document_is_as_likely_to_be_in_the_sample(build) -> None:
    trials, n, size = 3000, 24, 6
    counts = torch.zeros(n, dtype=torch.float64)
    pairs = 0
    for seed in range(trials):
        chosen = members(build(seed))
        assert len(set(chosen)) == size
        counts[chosen] += 1
        pairs += {2, 20} <= set(chosen)
    share = size / n
    chi2 = ((counts - trials * share).square() / (trials * share * (1 - share))).sum().item() * (n - 1) / n
    assert chi2 < 49.7  # 0.999 of chi-square with 23 degrees of freedom
    together = size * (size - 1) / (n * (n - 1))  # two documents, one early and one late, sampled independently
    assert abs(pairs - trials * together) < 3.3 * math.sqrt(trials * together)


def test_a_merge_weighs_the_samples_by_their_counts() -> None:
    big = Ensemble(2, reservoir=400, seed=1).update(numbered(0, 9000))
    small = Ensemble(2, reservoir=400, seed=2).update(numbered(9000, 1000))
    from_small = sum(x >= 9000 for x in members(big.merge(small)))
    assert abs(from_small - 40) < 4 * math.sqrt(400 * 0.1 * 0.9)  # hypergeometric, 40 expected


def test_reservoir_off_and_smaller_partners() -> None:
    off = Ensemble(2, reservoir=0).update(numbered(0, 50))
    assert off.reservoir.shape == (0, 2)
    mixed = Ensemble(2, reservoir=20).update(numbered(0, 100))
    mixed.merge(Ensemble(2, reservoir=5).update(numbered(100, 100)))
    assert len(mixed.reservoir) == mixed.reservoir_size == 5  # more could not be uniform
    mixed.merge(Ensemble(2, reservoir=5).update(numbered(200, 3)))  # kept whole: nothing is lost
    assert len(mixed.reservoir) == 5
    assert len(mixed.merge(off).reservoir) == 0
    assert len(mixed) == 253


# --- copies ------------------------------------------------------------------------------------------------------


CHANGES = {
    "update": lambda e: e.update(rows(30, seed=5)),
    "merge": lambda e: e.merge(Ensemble.from_embeddings(rows(30, seed=6), encoder="a", reservoir=5)),
    "to": lambda e: e.to("meta"),
    "in place": lambda e: [x.zero_() for x in (*bits(e).values(), e.probe)],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_change_of_a_copy_leaves_the_original(make, change) -> None:
    ens = Ensemble.from_embeddings(rows(20), reservoir=10)
    ens.probe = torch.ones(12)
    before = {name: x.clone() for name, x in bits(ens).items()}
    twin = make(ens)
    assert all(torch.equal(x, bits(twin)[name]) for name, x in before.items())
    change(twin)
    assert all(torch.equal(x, before[name]) for name, x in bits(ens).items())
    assert (repr(ens), ens.encoder, ens.reservoir_size) == (
        repr(Ensemble.from_embeddings(rows(20), reservoir=10)),
        None,
        10,
    )
    assert torch.equal(ens.probe, torch.ones(12))
    for one in (ens, same := Ensemble.from_embeddings(rows(20), reservoir=10)):  # the sample goes on as if never copied
        one.update(rows(200, seed=1))
    assert torch.equal(ens.reservoir, same.reservoir)


# --- ranks -------------------------------------------------------------------------------------------------------


def test_all_reduce_without_ranks_changes_nothing() -> None:
    ens = Ensemble.from_embeddings(rows(20))
    assert len(ens.all_reduce()) == 20


PROBES = {
    "opposite": (1.0, -1.0),
    "first": (1.0, None),
    "second": (None, 2.0),
    "both": (1.0, 2.0),
    "none": (None, None),
}


def _rank(rank: int, folder: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    shards = rows(130).split([90, 40])
    ens = Ensemble(12, reservoir=100, seed=rank, encoder="e").update(shards[rank])
    ens.all_reduce().save(f"{folder}/rank{rank}")
    few = Ensemble(12, seed=rank).update(shards[rank][: 5 * rank])  # rank 0 has nothing
    few.all_reduce().save(f"{folder}/few{rank}")
    Ensemble(12).update(stretched()[2 * rank :][:2]).all_reduce().save(f"{folder}/same{rank}")
    for name, one in (("dim", Ensemble(12 + rank)), ("encoder", Ensemble(12, encoder=["ä", "another"][rank]))):
        with pytest.raises(ValueError, match="ensembles") as caught:
            one.all_reduce()
        Path(f"{folder}/{name}{rank}").write_text(str(caught.value), encoding="utf-8")
    Ensemble(12, encoder=[None, "known"][rank]).all_reduce().save(f"{folder}/named{rank}")
    for name, probes in PROBES.items():
        one = Ensemble(12).update(shards[rank])
        one.probe = None if probes[rank] is None else torch.tensor(probes[rank]) * torch.ones(12)
        if name == "opposite":
            with pytest.raises(ValueError, match="different encoders, or from one before and after it was trained"):
                one.all_reduce()
        else:
            one.all_reduce().save(f"{folder}/{name}{rank}")
    dist.destroy_process_group()


def test_two_ranks_end_with_the_same_and_with_the_one_process_result(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    one, two = (Ensemble.load(tmp_path / f"rank{rank}", encoder="e") for rank in range(2))
    assert all(torch.equal(x, bits(two)[name]) for name, x in bits(one).items())
    whole = Ensemble.from_embeddings(rows(130))
    assert len(one) == 130
    for ours, theirs in zip(one.moments(rows(5, seed=3)), whole.moments(rows(5, seed=3)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    kept, known = set(map(tuple, one.reservoir.tolist())), set(map(tuple, rows(130).tolist()))
    assert len(kept) == 100
    assert kept <= known
    few = [Ensemble.load(tmp_path / f"few{rank}") for rank in range(2)]
    assert sorted(few[0].reservoir.tolist()) == sorted(few[1].reservoir.tolist()) == sorted(rows(130)[90:95].tolist())
    for rank in range(2):
        assert (Ensemble.load(tmp_path / f"same{rank}").moments(rows(5, dtype=torch.float64))[1] == 0).all()
        message = (tmp_path / f"dim{rank}").read_text(encoding="utf-8")
        assert message.startswith("the ranks' ensembles differ in (dim, normalize, reservoir): [(12,")
        message = (tmp_path / f"encoder{rank}").read_text(encoding="utf-8")
        assert message.startswith("these ensembles come from different encoders, 'ä' and 'another'")
        assert Ensemble.load(tmp_path / f"named{rank}").encoder == "known"
    for name, (probe, other) in PROBES.items():
        if name != "opposite":
            saved = [(tmp_path / f"{name}{rank}").read_bytes() for rank in range(2)]
            assert saved[0] == saved[1]
            found, want = Ensemble.load(tmp_path / f"{name}0").probe, other if probe is None else probe
            assert (found is None) if want is None else torch.equal(found, torch.full((12,), want))
