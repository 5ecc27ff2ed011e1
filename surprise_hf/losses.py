"""The weighted binary focal loss of the paper over the whole matrix of documents and labels, and what feeds it.

For a document k and a label q with target i = 1 where the label is right and eps where it is not:

    p = probability(cos(k, q))
    l = - i (1 - p)^gamma log p  -  (1 - i) p^gamma log(1 - p)        averaged over all pairs

Of m labels one is right, so that in a plain mean (the paper's) a document's right label counts 1/m. `balanced` gives
the right and the wrong labels of a document half the mean each, whatever m is.

The paper forms the pairs (k, q) and encodes both sides of each; here documents and labels are encoded once and their
product is the matrix, which has the same mean.

`torch.ops.surprise_hf.weighted_focal_loss` computes loss and slope dl/dcos in one pass, so that between forward and
backward no more than one (documents, labels) matrix is kept. Paper: section 3.2 (training).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .ops import compute_dtype, unit_rows

__all__ = ["PROBABILITIES", "LabelMatrixLoss", "WeightedFocalLoss", "weighted_focal_loss"]

PROBABILITIES = ("softplus", "relu")
SHARPNESS = 20.0  # of softplus: the line p = cos above about 0.15, a tail e^(20 cos) / 20 below

_Matrix = tuple[Tensor, Tensor, Tensor]


# --- the formula -------------------------------------------------------------------------------------------------


def _probability(cos: Tensor, kind: str, delta: float, coarse: float) -> _Matrix:
    """p, dp/dcos and d(log p)/dcos of cosines, p kept where its logarithms are finite.

    `coarse` is the rounding of the embeddings: a cosine closer than that to 1 (half precision: to 0 too) is not
    known to differ from it. At p = 1 the slope stays, so that a wrong pair leaves; below 0 ReLU has none.
    """
    if kind == "relu":
        shifted = cos + delta
        p = shifted.clamp(max(delta, coarse) if coarse > 1e-4 else delta, 1 - coarse)
        slope = (shifted > 0).to(cos.dtype)
    else:
        p = (nn.functional.softplus(cos * SHARPNESS) / SHARPNESS).clamp(max=1 - coarse)
        slope = torch.sigmoid(cos * SHARPNESS)
    return p, slope, slope / p


def _cross_entropy(p: Tensor, positive: Tensor, epsilon: float) -> _Matrix:
    """i, and the two parts of the cross-entropy of every pair: -i log p and -(1 - i) log(1 - p)."""
    i = torch.where(positive, 1.0, epsilon).to(p.dtype)
    return i, -i * p.log(), (i - 1) * torch.log1p(-p)


def _value_and_slope(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    weight: Tensor,
    gamma: float,
    epsilon: float,
    probability: str,
    delta: float,
    balanced: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, cross-entropy, and G (B, m), a (B,), b (m,) with dl/dk = G q - a k and dl/dq = G' k - b q.

    The norms are divided out of the product, not of the rows, so that nothing of the rows' size is written.
    """
    with torch.autocast(keys.device.type, enabled=False):  # a cosine in half precision is too coarse
        coarse = _coarse(keys, queries)
        keys, queries = _common(keys, queries)
        inverse_k, inverse_q = _inverse_norms(keys), _inverse_norms(queries)
        scale = torch.outer(inverse_k, inverse_q)
        cos = (keys @ queries.T).mul_(scale)
        p, dp, dlog = _probability(cos, probability, delta, coarse)
        i, right, wrong = _cross_entropy(p, positive, epsilon)
        share = _shares(positive, balanced).to(cos.dtype)
        cross_entropy = ((right + wrong) * share).sum()
        left = 1 - p
        if gamma == 1:
            loss = left * right + p * wrong
            slope = (wrong - right + (1 - i) * p / left) * dp - i * left * dlog
        else:
            focus_right, focus_wrong = left**gamma, p**gamma
            loss = focus_right * right + focus_wrong * wrong
            inner = gamma * (p ** (gamma - 1) * wrong - left ** (gamma - 1) * right)
            slope = (inner + (1 - i) * focus_wrong / left) * dp - i * focus_right * dlog
        share = share * weight.to(cos.dtype).unsqueeze(1)
        slope *= share
        along = slope * cos
        a, b = along.sum(dim=1) * inverse_k.square(), along.sum(dim=0) * inverse_q.square()
        return (loss * share).sum(), cross_entropy, slope.mul_(scale), a, b


def _shares(positive: Tensor, balanced: bool) -> Tensor:
    """Share of each pair in the mean: (B, m) or something that broadcasts to it. A row adds up to 1 / B."""
    rows, m = positive.shape
    if not balanced:
        return positive.new_full((1, 1), 1 / max(rows * m, 1), dtype=torch.float64)
    count = positive.sum(dim=1, keepdim=True)
    halves = rows * ((count > 0).long() + (count < m))
    return 1 / (halves * torch.where(positive, count, m - count))


def _common(keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(torch.promote_types(keys.dtype, queries.dtype))
    return keys.to(dtype), queries.to(dtype)


def _inverse_norms(rows: Tensor) -> Tensor:
    """(n,) 1 / |row|, 0 for a zero row."""
    norm = torch.linalg.vector_norm(rows, dim=1)
    return torch.where(norm > 0, 1 / norm, 0.0)


def _reference(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    weight: Tensor,
    gamma: float,
    epsilon: float,
    probability: str,
    delta: float,
    balanced: bool,
) -> tuple[Tensor, Tensor]:
    """The same for autograd to differentiate: the definition that the op is tested against."""
    cos = unit_rows(keys) @ unit_rows(queries).T
    p, _, _ = _probability(cos, probability, delta, _coarse(keys, queries))
    _, right, wrong = _cross_entropy(p, positive, epsilon)
    loss = (1 - p) ** gamma * right + p**gamma * wrong
    share = _shares(positive, balanced).to(p.dtype)
    return (loss * share * weight.to(p.dtype).unsqueeze(1)).sum(), ((right + wrong).detach() * share).sum()


def _coarse(keys: Tensor, queries: Tensor) -> float:
    return max(torch.finfo(keys.dtype).eps, torch.finfo(queries.dtype).eps)


# --- the op ------------------------------------------------------------------------------------------------------


@torch.library.custom_op("surprise_hf::weighted_focal_loss", mutates_args=())
def _op(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    weight: Tensor,
    gamma: float,
    epsilon: float,
    probability: str,
    delta: float,
    balanced: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _value_and_slope(keys, queries, positive, weight, gamma, epsilon, probability, delta, balanced)


@_op.register_fake
def _(keys: Tensor, queries: Tensor, *_: Any) -> tuple[Tensor, ...]:
    dtype = compute_dtype(torch.promote_types(keys.dtype, queries.dtype))
    b, m = keys.shape[0], queries.shape[0]
    return tuple(keys.new_empty(shape, dtype=dtype) for shape in ((), (), (b, m), (b,), (m,)))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(inputs[0], inputs[1], *output[2:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    given_keys, given_queries, slope, a, b = ctx.saved_tensors
    with torch.autocast(slope.device.type, enabled=False):
        keys, queries = _common(given_keys, given_queries)
        slope = slope * grad
        g_keys = g_queries = None
        if ctx.needs_input_grad[0]:
            g_keys = torch.addmm(keys * (-grad * a).unsqueeze(1), slope, queries).to(given_keys.dtype)
        if ctx.needs_input_grad[1]:
            g_queries = torch.addmm(queries * (-grad * b).unsqueeze(1), slope.T, keys).to(given_queries.dtype)
    return g_keys, g_queries, None, None, None, None, None, None, None


_op.register_autograd(_backward, setup_context=_setup)


def weighted_focal_loss(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    *,
    weight: Tensor | None = None,
    gamma: float = 1.0,
    epsilon: float = 0.05,
    probability: str = "softplus",
    delta: float = 1e-10,
    balanced: bool = True,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The weighted focal loss of every document with every label, and the plain cross-entropy beside it.

    Args:
        keys: (B, d) floating: the documents.
        queries: (m, d) floating: the labels.
        positive: (B, m) bool, True where the label is right; a row may have several, or none.
        weight: (B,) of the documents; None counts each once. It is not divided by its sum, so that the mean over
            parts of a batch is that over the whole.
        gamma: of the focal factor; 0 gives the cross-entropy.
        epsilon: target of the negative pairs, 0 to 1.
        probability: p of a cosine. "relu": max(0, cos + delta), the paper's, which gives no gradient to a right pair
            with negative cosine. "softplus": log(1 + e^(20 cos)) / 20, nearly the same above 0.15, with a slope
            everywhere.
        delta: of "relu".
        balanced: half of a document's mean for its right labels, half for the others; False averages over all pairs
            alike, as the paper does.
        impl: "auto" (the op, whose gradient has no gradient) or "reference" (autograd, for higher derivatives).

    Returns:
        loss: () the mean, float32 (float64 for float64 input), differentiable in keys and queries.
        cross_entropy: () the mean of -i log p - (1 - i) log(1 - p) without `weight` and without gradient.
        No pairs give 0.

    Raises:
        TypeError: keys or queries are not floating, or `positive` is not boolean.
        ValueError: shapes or options do not fit.

    References: paper section 3.2, equations of i, FL and l.
    """
    _check(keys, queries, positive, weight)
    if probability not in PROBABILITIES:
        raise ValueError(f"probability must be one of {PROBABILITIES}, got {probability!r}")
    if not gamma >= 0 or not 0 <= epsilon <= 1 or not 0 < delta < 1:
        raise ValueError(f"gamma >= 0, 0 <= epsilon <= 1, 0 < delta < 1 must hold: {gamma=}, {epsilon=}, {delta=}")
    if impl not in ("auto", "reference"):
        raise ValueError(f"impl must be 'auto' or 'reference', got {impl!r}")
    weight = keys.new_ones(len(keys), dtype=compute_dtype(keys.dtype)) if weight is None else weight
    options = (float(gamma), float(epsilon), probability, float(delta), bool(balanced))
    if impl == "reference":
        return _reference(keys, queries, positive, weight, *options)
    return _op(keys, queries, positive, weight, *options)[:2]


def _check(keys: Tensor, queries: Tensor, positive: Tensor, weight: Tensor | None) -> None:
    for name, rows in (("keys", keys), ("queries", queries)):
        if not rows.is_floating_point():
            raise TypeError(f"{name} must have a floating dtype, got {rows.dtype}")
        if rows.dim() != 2:
            raise ValueError(f"{name} must have shape (rows, dim), got {tuple(rows.shape)}")
    if keys.shape[1] != queries.shape[1]:
        raise ValueError(f"keys have {keys.shape[1]} dimensions but queries have {queries.shape[1]}")
    if positive.dtype != torch.bool:
        raise TypeError(f"positive must be boolean, got {positive.dtype}")
    if positive.shape != (len(keys), len(queries)):
        raise ValueError(f"positive must have shape {(len(keys), len(queries))}, got {tuple(positive.shape)}")
    if weight is not None and weight.shape != (len(keys),):
        raise ValueError(f"weight must have shape ({len(keys)},), one for each document, got {tuple(weight.shape)}")


class WeightedFocalLoss(nn.Module):
    """`weighted_focal_loss` as a module, with class weights.

    Args:
        gamma, epsilon, probability, delta, balanced: as for `weighted_focal_loss`.
        class_weight: (m,) or None. A document counts with the mean weight of its labels (1 if it has none), as if it
            occurred that many times.

    Inputs of the call: keys (B, d), queries (m, d), positive (B, m) bool, sample_weight (B,) or None.

    Returns: loss () and cross-entropy ().

    Example:
        >>> loss, cross_entropy = WeightedFocalLoss()(documents, labels, positive)
        >>> loss.backward()
    """

    class_weight: Tensor | None

    def __init__(
        self,
        gamma: float = 1.0,
        epsilon: float = 0.05,
        probability: str = "softplus",
        delta: float = 1e-10,
        balanced: bool = True,
        class_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.gamma, self.epsilon, self.probability, self.delta = gamma, epsilon, probability, delta
        self.balanced = balanced
        weight = None if class_weight is None else torch.as_tensor(class_weight, dtype=torch.float32)
        self.register_buffer("class_weight", weight, persistent=False)

    def forward(
        self, keys: Tensor, queries: Tensor, positive: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss and cross-entropy."""
        weight = sample_weight
        if self.class_weight is not None:
            mine = positive.to(self.class_weight.dtype)
            count = mine.sum(dim=1)
            by_class = torch.where(count > 0, mine @ self.class_weight / count.clamp(min=1), 1.0)
            weight = by_class if weight is None else weight * by_class
        return weighted_focal_loss(
            keys,
            queries,
            positive,
            weight=weight,
            gamma=self.gamma,
            epsilon=self.epsilon,
            probability=self.probability,
            delta=self.delta,
            balanced=self.balanced,
        )

    def extra_repr(self) -> str:
        """The options."""
        return f"gamma={self.gamma}, epsilon={self.epsilon}, probability={self.probability!r}, balanced={self.balanced}"


# --- for a trainer -----------------------------------------------------------------------------------------------


class LabelMatrixLoss(nn.Module):
    """The loss of a batch of documents against a fixed set of labels: each is encoded once in a step.

    With more labels than `labels_per_step`, a step encodes those of its documents and, in turn, some others; the
    vectors of the rest are those of the last time. So a document still meets every label, and a step's cost does
    not grow with their number. Each label is encoded at least once in m / (labels_per_step - its documents' labels)
    steps.

    Args:
        model: a SentenceTransformer.
        texts: m label texts, the template filled in.
        focal: what to compute.
        labels_per_step: label texts to encode in a step; None takes all.
        prompt: put before each label text, as before each document.

    Inputs of the call, as SentenceTransformerTrainer passes them: [features of the documents], and (positive (B, m)
    bool, sample_weight (B,) or None).

    Attributes:
        encoded: texts encoded so far: {"documents", "labels"}.
        total: (2,) float64, sum of the batches' cross-entropies and their number, of training steps.
    """

    total: Tensor

    def __init__(
        self,
        model: nn.Module,
        texts: Sequence[str],
        focal: WeightedFocalLoss | None = None,
        labels_per_step: int | None = None,
        prompt: str | None = None,
    ) -> None:
        super().__init__()
        self.model = model  # under this name a trainer puts its wrapped model
        self.focal = WeightedFocalLoss() if focal is None else focal
        self.texts, self.prompt = list(texts), prompt
        self.labels_per_step = len(self.texts) if labels_per_step is None else labels_per_step
        self.encoded = {"documents": 0, "labels": 0}
        self.register_buffer("total", torch.zeros(2, dtype=torch.float64), persistent=False)
        self._known: Tensor | None = None  # (m, d), each label when last encoded
        self._turn = 0

    def forward(self, features: list[dict[str, Any]], labels: tuple[Tensor, Tensor | None]) -> Tensor:
        """The focal loss; the cross-entropy is added to `total` when training."""
        positive, sample_weight = labels
        keys = self.model(features[0])["sentence_embedding"]
        self.encoded["documents"] += len(keys)
        loss, cross_entropy = self.focal(keys, self._label_vectors(positive), positive, sample_weight)
        if self.training and torch.is_grad_enabled():
            self.total += torch.stack((cross_entropy, torch.ones_like(cross_entropy))).to(self.total)
        return loss

    def take_total(self) -> Tensor:
        """(2,) `total`, which starts anew."""
        total = self.total.clone()
        self.total.zero_()
        return total

    def _label_vectors(self, positive: Tensor) -> Tensor:
        if self.labels_per_step >= len(self.texts):
            return self._encode(list(range(len(self.texts))), positive.device)
        if self._known is None:
            with torch.no_grad():
                every = torch.arange(len(self.texts)).split(max(self.labels_per_step, 1))
                self._known = torch.cat([self._encode(part.tolist(), positive.device) for part in every])
        chosen = self._choose(positive)
        fresh = self._encode(chosen, positive.device)
        at = torch.tensor(chosen, device=positive.device)
        vectors = self._known.to(fresh.dtype).index_copy(0, at, fresh)
        self._known = vectors.detach()
        return vectors

    def _choose(self, positive: Tensor) -> list[int]:
        """The labels of these documents (of all processes' documents, so that all choose alike), and the next ones."""
        present = positive.any(dim=0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            present = present.to(torch.int32)
            torch.distributed.all_reduce(present, op=torch.distributed.ReduceOp.MAX)
        chosen = dict.fromkeys(present.nonzero().flatten().tolist())
        for _ in self.texts:
            if len(chosen) >= self.labels_per_step:
                break
            chosen.setdefault(self._turn)
            self._turn = (self._turn + 1) % len(self.texts)
        return sorted(chosen)

    def _encode(self, rows: list[int], device: torch.device) -> Tensor:
        features = self.model.preprocess([self.texts[row] for row in rows], prompt=self.prompt)  # type: ignore[operator]
        features = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in features.items()}
        self.encoded["labels"] += len(rows)
        return self.model(features)["sentence_embedding"]
