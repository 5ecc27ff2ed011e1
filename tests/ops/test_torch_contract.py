"""What torch asks of an op: opcheck, gradients, compile, export, meta tensors, errors that name the argument."""

import re
from pathlib import Path

import pytest
import torch

from surprise_hf import ops
from surprise_hf.ops import _loader

from .shapes import DTYPES, devices, rows

KEYS, QUERIES = rows(12, 9, torch.float64, 1), rows(5, 9, torch.float64, 2)
MEAN, STD = ops.cosine_moments(KEYS, QUERIES)
NAMES = (
    "cosine_surprise",
    "cosine_moments",
    "surprise_from_moments",
    "surprise_topk",
    "search_topk",
    "gathered_products",
    "ensemble_update",
    "ensemble_moments",
)
WITHOUT_GRADIENT = ("search_topk", "gathered_products", "ensemble_update")
WITHOUT_OUTPUT = ("cosine_moments", *WITHOUT_GRADIENT, "ensemble_moments")


def call(name, keys, queries, mean, std, **options):
    """The first (floating) outputs of one op, whatever its arguments."""
    if name == "cosine_surprise":
        return ops.cosine_surprise(keys, queries, **options)
    if name == "cosine_moments":
        return ops.cosine_moments(keys, queries)
    if name == "surprise_from_moments":
        return ops.surprise_from_moments(keys, queries, mean, std, **options)
    return ops.surprise_topk(keys, queries, mean, std, 2, **options)[0]


def test_the_library_is_the_compiled_one():
    """The suite tests the kernels: a run in reference mode would pass for the wrong reason."""
    info = ops.build_info()
    assert info["implementation"] == "compiled", info["cpu_reason"]
    assert info["cpu_features"] in ("amx", "avx512", "avx2", "portable")


def test_both_schema_lists_are_equal():
    source = (Path(__file__).parents[2] / "csrc" / "bindings.cpp").read_text()
    calls = re.findall(r'm\.def\(\s*((?:"[^"]*"\s*)+)\)', source)
    schemas = ["".join(re.findall(r'"([^"]*)"', call)) for call in calls]
    assert [s for s in schemas if not s.startswith("cpu_features")] == list(_loader.SCHEMAS)


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, dtype, device):
    keys = KEYS.to(device, dtype, copy=True).requires_grad_(name not in WITHOUT_GRADIENT)
    queries = QUERIES.to(device, dtype, copy=True).requires_grad_(name not in WITHOUT_GRADIENT)
    d = keys.shape[1]
    state = [x.double().to(device) for x in (torch.tensor(3.0), torch.zeros(d), torch.eye(d))]
    moments = MEAN.to(device), STD.to(device)
    arguments = {
        "cosine_surprise": (keys, queries),
        "cosine_moments": (keys, queries),
        "surprise_from_moments": (keys, queries, *moments),
        "surprise_topk": (keys, queries, *moments, 3),
        "search_topk": (
            keys,
            queries,
            MEAN.to(device),
            torch.ones(12, dtype=ops.compute_dtype(dtype), device=device),
            3,
        ),
        "gathered_products": (
            *ops.split_halves(keys.float()),
            torch.arange(10, device=device).view(5, 2),
            queries.double(),
        ),
        "ensemble_update": (*state, keys),
        "ensemble_moments": (state[1], state[2], queries),
    }[name]
    options = {} if name in WITHOUT_OUTPUT else {"output": "z"}
    tight = dtype == torch.float64
    torch.library.opcheck(
        getattr(torch.ops.surprise_hf, name),
        arguments,
        options,
        atol=1e-9 if tight else 1e-2,  # the gradient of z summed over its own ensemble is rounding noise
        rtol=1e-6 if tight else 1e-2,
    )


@devices
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("output", ops.OUTPUTS)
@pytest.mark.parametrize("name", NAMES[:4])
def test_gradients(name, output, normalize, device):
    if name == "cosine_moments":

        def function(keys, queries):
            return ops.cosine_moments(keys, queries, normalize=normalize)

        inputs = (KEYS, QUERIES)
    else:

        def function(keys, queries, *moments):
            moments = moments or (None, None)
            return call(name, keys, queries, *moments, output=output, normalize=normalize)

        inputs = (KEYS, QUERIES) if name == "cosine_surprise" else (KEYS, QUERIES, MEAN, STD)
    inputs = tuple(x.to(device, copy=True).requires_grad_() for x in inputs)
    # surprise_topk's gradient adds rows in any order on a GPU, as torch's index_add does
    assert torch.autograd.gradcheck(function, inputs, nondet_tol=0.0 if device == "cpu" else 1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_of_ensemble_moments(normalize):
    mean = KEYS.mean(0).requires_grad_()
    root = KEYS.clone().requires_grad_()  # the covariance is symmetric whatever moves: differentiate through it

    def function(mean, root, queries):
        return ops.ensemble_moments(mean, root.T @ root, queries, normalize=normalize)

    assert torch.autograd.gradcheck(function, (mean, root, QUERIES.clone().requires_grad_()))


@devices
@pytest.mark.parametrize("name", NAMES[:4])
def test_the_dispatchers_way_gives_the_same_gradient(name, device):
    """The functions call the ops past the gradients that torch.ops has registered."""
    constants = {"surprise_from_moments": (MEAN, STD), "surprise_topk": (MEAN, STD, 2)}.get(name, ())
    gradients = []
    for function in (getattr(ops, name), getattr(torch.ops.surprise_hf, name)):
        leaves = [x.to(device, copy=True).requires_grad_() for x in (KEYS, QUERIES)]
        out = function(*leaves, *(x.to(device) if isinstance(x, torch.Tensor) else x for x in constants))
        first = out[0] if isinstance(out, tuple) else out
        first.square().sum().backward()
        gradients.append([x.grad for x in leaves])
    for direct, registered in zip(*gradients, strict=True):
        assert direct.abs().max() > 0
        torch.testing.assert_close(direct, registered, rtol=1e-12, atol=1e-12)


def test_second_derivatives():
    inputs = (KEYS[:5].clone().requires_grad_(), QUERIES[:2].clone().requires_grad_())
    assert torch.autograd.gradgradcheck(lambda k, q: ops.cosine_surprise(k, q)[0], inputs)
    assert torch.autograd.gradgradcheck(ops.cosine_moments, inputs)


POSITIVE = torch.rand(12, 5, generator=torch.Generator().manual_seed(3)) < 0.3
TRANSFORMED = {
    "cosine_surprise": lambda keys: ops.cosine_surprise(keys, QUERIES)[0],
    "cosine_moments": lambda keys: torch.stack(ops.cosine_moments(keys, QUERIES)),
    "surprise_from_moments": lambda keys: ops.surprise_from_moments(keys, QUERIES, MEAN, STD),
    "surprise_topk": lambda keys: ops.surprise_topk(keys, QUERIES, MEAN, STD, 2)[0],
    "ensemble_moments": lambda keys: torch.stack(ops.ensemble_moments(keys[0], torch.eye(9).double(), keys)),
    "weighted_focal_loss": lambda keys: ops.weighted_focal_loss(keys, QUERIES, POSITIVE)[0],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivatives_by_transforms(name):
    """In forward mode and by torch.func they are those of backward, and not silently nothing."""
    function, jacobian = TRANSFORMED[name], torch.autograd.functional.jacobian
    near = {"rtol": 1e-9, "atol": 1e-9}
    want = jacobian(function, KEYS)
    assert want.abs().max() > 1e-3
    torch.testing.assert_close(torch.func.jacrev(function)(KEYS), want, **near)
    torch.testing.assert_close(torch.func.jacfwd(function)(KEYS), want, **near)

    def total(keys):
        return function(keys).square().sum()

    torch.testing.assert_close(torch.func.grad(total)(KEYS), jacobian(total, KEYS), **near)
    along = torch.linspace(-1, 1, KEYS.numel(), dtype=torch.float64).view_as(KEYS)
    slope = (want * along).sum(dim=(-2, -1))
    torch.testing.assert_close(torch.func.jvp(function, (KEYS,), (along,))[1], slope, **near)
    several = torch.stack([KEYS, KEYS.flip(0), 2 * KEYS])
    each = torch.stack([jacobian(total, keys) for keys in several])
    torch.testing.assert_close(torch.vmap(torch.func.grad(total))(several), each, **near)
    torch.testing.assert_close(torch.func.grad(lambda x: torch.vmap(total)(x).sum())(several), each, **near)
    leaf = several.clone().requires_grad_()
    torch.vmap(total)(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, each, **near)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(function)(several)[1], function(several[1]), **near)
    with torch.autograd.forward_ad.dual_level():
        out = function(torch.autograd.forward_ad.make_dual(KEYS, along))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(out).tangent, slope, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradient_of_lower_precision_is_that_of_float64(dtype):
    keys, queries = KEYS.to(dtype), QUERIES.to(dtype)
    grads = []
    for wide in (dtype, torch.float64):
        leaves = [x.to(wide, copy=True).requires_grad_() for x in (keys, queries)]
        scores, mean, std = ops.cosine_surprise(*leaves)
        (scores[:, 0].square().sum() + mean.sum() + 3 * std.sum()).backward()
        assert all(x.grad.dtype == x.dtype for x in leaves)
        grads.append([x.grad.double() for x in leaves])
    for got, want in zip(*grads, strict=True):
        scale = want.abs().max().item()
        torch.testing.assert_close(got, want, rtol=0, atol=scale * (1e-4 if dtype == torch.float32 else 2e-2))


@pytest.mark.parametrize("name", NAMES[:4])
def test_no_gradient_is_nan_where_nothing_spreads(name):
    for keys in (KEYS[:1], KEYS[:1].expand(4, -1), torch.zeros(4, 9).double()):
        leaves = [x.clone().requires_grad_() for x in (keys, QUERIES)]
        mean, std = ops.cosine_moments(*leaves)
        out = call(name, *leaves, mean.detach(), std.detach())
        sum(x.sum() for x in (out if isinstance(out, tuple) else (out,))).backward()
        assert all(x.grad is None or not x.grad.isnan().any() for x in leaves)


@pytest.mark.parametrize("name", NAMES[:2])
def test_what_does_not_spread_takes_no_gradient_not_even_an_infinite_one(name):
    """Of the logarithm of a sigma of 0."""
    leaves = [x.clone().requires_grad_() for x in (KEYS[:1].expand(4, -1), QUERIES)]
    call(name, *leaves, MEAN, STD)[-1].log().sum().backward()
    assert not any(x.grad.any() for x in leaves)


@devices
@pytest.mark.parametrize("name", NAMES[:4])
def test_compile_without_graph_breaks(name, device):
    keys, queries, mean, std = KEYS.float().to(device), QUERIES.float().to(device), MEAN.to(device), STD.to(device)

    def function(keys, queries):
        out = call(name, keys, queries, mean, std)
        return out[0] * 2 if isinstance(out, tuple) else out * 2

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (12, 7):
        assert torch.equal(compiled(keys[:n], queries), function(keys[:n], queries))


# inductor itself can't link where the path of torch holds a space
@devices
@pytest.mark.parametrize("backend", ["aot_eager", *(["inductor"] if " " not in torch.__file__ else [])])
def test_compile_together_with_its_neighbours(backend, device):
    keys, queries = KEYS.float().to(device), QUERIES.float().to(device)
    compiled = torch.compile(lambda k, q: ops.cosine_surprise(k * 2, q)[0] + 1, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(keys, queries), ops.cosine_surprise(keys, queries)[0] + 1)


def test_export_with_any_number_of_documents(tmp_path):
    class Scores(torch.nn.Module):
        def forward(self, keys, queries):
            return ops.cosine_surprise(keys, queries)[0]

    documents = torch.export.Dim("documents", min=2)
    program = torch.export.export(
        Scores(), (KEYS.float(), QUERIES.float()), dynamic_shapes=({0: documents}, {}), strict=False
    )
    torch.export.save(program, tmp_path / "scores.pt2")
    loaded = torch.export.load(tmp_path / "scores.pt2").module()
    for n in (12, 7):
        assert torch.equal(loaded(KEYS[:n].float(), QUERIES.float()), Scores()(KEYS[:n].float(), QUERIES.float()))


def test_meta_tensors_give_shapes():
    keys, queries = torch.empty(7, 9, device="meta", dtype=torch.bfloat16), torch.empty(5, 9, device="meta")
    scores, mean, std = ops.cosine_surprise(keys, queries)
    assert (scores.shape, scores.dtype, mean.shape, std.dtype) == ((7, 5), torch.float32, (5,), torch.float64)
    values, indices = ops.surprise_topk(keys, queries, mean, std, 2)
    assert (values.shape, indices.dtype) == ((7, 2), torch.int64)


BAD = {
    "keys must have shape": (torch.zeros(3), QUERIES),
    "keys must be a torch.Tensor": ([[1.0]], QUERIES),
    "keys must have a floating dtype": (torch.zeros(3, 9, dtype=torch.int64), QUERIES),
    "queries must have a floating dtype": (KEYS, torch.zeros(3, 9, dtype=torch.bool)),
    "keys must have a floating dtype of 16": (KEYS.to(torch.float8_e4m3fn), QUERIES),
    "keys have 8 dimensions but queries have 9": (KEYS[:, :8], QUERIES),
    "keys are on cpu but queries are on meta": (KEYS, QUERIES.to("meta")),
}


@pytest.mark.parametrize("message", BAD)
def test_errors_name_the_argument(message):
    for function in (ops.cosine_surprise, lambda k, q: ops.surprise_topk(k, q, MEAN, STD, 1)):
        with pytest.raises((ValueError, TypeError), match=message):
            function(*BAD[message])


def every_argument():
    """(op, its arguments by name) of all that take tensors."""
    vector, square = torch.zeros(9).double(), torch.zeros(9, 9).double()
    halves = dict(zip(("near", "rest"), ops.split_halves(KEYS.float()), strict=True))
    positive, one = torch.zeros(12, 5, dtype=torch.bool), torch.ones(12)
    return {
        ops.cosine_surprise: {"keys": KEYS, "queries": QUERIES},
        ops.cosine_moments: {"ensemble": KEYS, "queries": QUERIES},
        ops.surprise_from_moments: {"keys": KEYS, "queries": QUERIES, "mean": MEAN, "std": STD},
        ops.surprise_topk: {"keys": KEYS, "queries": QUERIES, "mean": MEAN, "std": STD, "k": 1},
        ops.search_topk: {"keys": KEYS, "queries": QUERIES, "margin": MEAN, "scale": one, "k": 1},
        ops.gathered_products: {**halves, "rows": torch.zeros(5, 1).long(), "queries": QUERIES},
        ops.ensemble_update: {"count": torch.zeros(()).double(), "mean": vector, "scatter": square, "batch": KEYS},
        ops.ensemble_moments: {"mean": vector, "covariance": square, "queries": QUERIES},
        ops.weighted_focal_loss: {"keys": KEYS, "queries": QUERIES, "positive": positive, "weight": one},
    }


@pytest.mark.parametrize(("op", "arguments"), every_argument().items(), ids=lambda x: getattr(x, "__name__", ""))
def test_arguments_that_are_no_tensors_are_named(op, arguments):
    op(**arguments)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            for other in (value.float().tolist(), value.float().numpy()):
                with pytest.raises(TypeError, match=f"^{name} must be a torch.Tensor, got (list|ndarray|float)$"):
                    op(**{**arguments, name: other})


@pytest.mark.parametrize(("op", "arguments"), every_argument().items(), ids=lambda x: getattr(x, "__name__", ""))
def test_sparse_arguments_are_named(op, arguments):
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.dim():
            with pytest.raises(TypeError, match=f"^{name} must be dense, got torch.sparse_coo: give its to_dense"):
                op(**{**arguments, name: value.to_sparse()})


def test_errors_of_options():
    with pytest.raises(ValueError, match="output must be one of"):
        ops.cosine_surprise(KEYS, QUERIES, output="probability")
    with pytest.raises(ValueError, match="impl must be one of"):
        ops.cosine_surprise(KEYS, QUERIES, impl="triton")
    with pytest.raises(ValueError, match=r"k must be between 1 and the 5 queries, got 6"):
        ops.surprise_topk(KEYS, QUERIES, MEAN, STD, 6)
    with pytest.raises(ValueError, match=r"std must have shape \(5,\)"):
        ops.surprise_from_moments(KEYS, QUERIES, MEAN, STD[:3])
    with pytest.raises(ValueError, match=r"scatter must be float64 of shape \(9, 9\)"):
        ops.ensemble_update(torch.zeros(()).double(), MEAN.new_zeros(9), torch.zeros(9, 8).double(), KEYS)
    for impl in ops.IMPLEMENTATIONS:  # a narrower state would lose digits with every batch
        with pytest.raises(ValueError, match=r"mean must be float64 of shape \(9,\), got torch.float32"):
            ops.ensemble_update(torch.zeros(()).double(), torch.zeros(9), torch.zeros(9, 9).double(), KEYS, impl=impl)
        with pytest.raises(ValueError, match=r"covariance must be float64 of shape \(9, 9\), got torch.float32"):
            ops.ensemble_moments(torch.zeros(9).double(), torch.zeros(9, 9), KEYS, impl=impl)


def test_an_empty_call_leaves_the_next_one_alone():
    want = ops.cosine_surprise(KEYS, QUERIES)
    ops.cosine_surprise(KEYS[:0], QUERIES)
    ops.cosine_surprise(KEYS, QUERIES[:0])
    for got, expected in zip(ops.cosine_surprise(KEYS, QUERIES), want, strict=True):
        assert torch.equal(got, expected)


def test_mixed_dtypes_meet_in_the_wider():
    scores, _, _ = ops.cosine_surprise(KEYS.half(), QUERIES.float())
    torch.testing.assert_close(scores, ops.cosine_surprise(KEYS.half().float(), QUERIES.float())[0])


def test_only_the_library_beside_the_package_is_taken(tmp_path, monkeypatch):
    """Another install's library, which an editable finder would offer under the same name, has other schemas."""
    (tmp_path / "ops").mkdir()
    monkeypatch.setattr(_loader, "__file__", str(tmp_path / "ops" / "_loader.py"))
    assert _loader._library_path("_C") is None
    (tmp_path / "_C.abi3.so").touch()
    assert _loader._library_path("_C") == tmp_path / "_C.abi3.so"
    assert _loader._library_path("_C_cuda") is None


@pytest.mark.parametrize("name", ["search_topk", "gathered_products"])
@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_sizes_dynamic_without_gradients_too(name, strict):
    """`len` of a tensor fixes its size where torch traces without dynamo."""
    keys, queries = KEYS.float(), QUERIES.float()
    near, rest = ops.split_halves(keys)

    class Search(torch.nn.Module):
        def forward(self, near, rest, queries):
            if name == "search_topk":
                return ops.search_topk(near, queries, queries[:, 0], None, 2)[0]
            return ops.gathered_products(near, rest, queries[:, :2].long().abs() % 3, queries.double())

    n, m = torch.export.Dim("n", min=3), torch.export.Dim("m", min=2)
    sizes = ({0: n}, {0: n}, {0: m})
    program = torch.export.export(Search(), (near, rest, queries), dynamic_shapes=sizes, strict=strict)
    smaller = near[:7], rest[:7], queries[:3]
    assert torch.equal(program.module()(*smaller), Search()(*smaller))


@pytest.mark.parametrize("impl", ops.IMPLEMENTATIONS)
def test_a_gradient_of_statistics_that_have_changed_since_is_refused(impl):
    """Not a wrong one: autograd knows of a change by the version of the tensor."""
    count, mean, scatter = torch.zeros(()).double(), torch.zeros(9).double(), torch.zeros(9, 9).double()
    ops.ensemble_update(count, mean, scatter, KEYS, impl=impl)
    queries = QUERIES.clone().requires_grad_()
    before, _ = ops.ensemble_moments(mean, scatter / count, queries, impl=impl)
    ops.ensemble_update(count, mean, scatter, KEYS[:3], impl=impl)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.sum().backward()
    with pytest.raises(ValueError, match="mean requires a gradient, and is changed in place"):
        ops.ensemble_update(count, mean.requires_grad_(), scatter, KEYS, impl=impl)


def test_gradients_come_in_batches():
    """As torch.autograd.functional.jacobian(vectorize=True) asks for them."""
    for name in set(NAMES) - set(WITHOUT_GRADIENT) - {"ensemble_moments"}:

        def first(keys, name=name):
            found = call(name, keys, QUERIES, MEAN, STD)
            return found if isinstance(found, torch.Tensor) else found[0]

        one_by_one = torch.autograd.functional.jacobian(first, KEYS)
        at_once = torch.autograd.functional.jacobian(first, KEYS, vectorize=True)
        torch.testing.assert_close(at_once, one_by_one)
