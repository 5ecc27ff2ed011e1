"""Labels from examples without training, and examples without labels.

`fit_labels` moves each label's vector from where its name lies to where it parts its examples from the others';
refinement on the documents does the rest. `pseudo_label` goes the other way: the documents that refined labels are
surest of make a training set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import inputs
from .ensemble import check_rows
from .estimators import row_slices, score_dtype
from .fitted import FittedLabels
from .inputs import BATCH_SIZE
from .ops import full_precision, unit_rows
from .targets import accuracy_and_f1, as_class_label, as_matrix, feature_of, read_targets

if TYPE_CHECKING:
    from datasets import Dataset

    from .model import SurpriseModel

__all__ = ["aim_labels", "fit_labels", "mix_labels", "part_labels", "pseudo_label"]

NAME_COUNTS = 2.0  # a label's name weighs as much as so many examples (docs/few_shot_tried.md)
SHARPNESS, PULL, STEPS = 10.0, 0.03, 60  # of `part_labels`


# --- labels from examples ----------------------------------------------------------------------------------------


def _check_examples(vectors: Tensor, examples: Tensor, positive: Tensor) -> None:
    check_rows("vectors", vectors)
    check_rows("examples", examples, vectors.shape[1])
    if positive.dtype != torch.bool or positive.shape != (len(examples), len(vectors)):
        raise ValueError(
            f"positive must be bool of shape ({len(examples)}, {len(vectors)}), which example has which label, got"
            f" {positive.dtype} {tuple(positive.shape)}"
        )


def _units(vectors: Tensor, examples: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows of both, of one type (the wider)."""
    dtype = score_dtype(vectors, examples)
    return unit_rows(vectors).to(dtype), unit_rows(examples).to(dtype)


def _shares(rows: Tensor, positive: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """How much each of the unit rows (n, d) counts for each label (n, m), and their middle (d,)."""
    share = positive.to(rows.device, rows.dtype)
    if weight is None:
        return share, rows.mean(dim=0)
    weight = weight.to(rows)
    return share * weight.unsqueeze(1), weight @ rows / weight.sum().clamp(min=torch.finfo(rows.dtype).tiny)


@full_precision
def mix_labels(vectors: Tensor, examples: Tensor, positive: Tensor, weight: Tensor | None = None) -> Tensor:
    """Label vectors between the labels' names and their examples.

    Names and examples differ in more than meaning (length, form), so both are seen from the mean c of the examples:
    with u(x) = x / |x| and a label of n examples with mean M, the direction is 2 u(q^ - c) + n u(M - c).

    Args:
        vectors: (m, d) floating: the embedded names.
        examples: (n, d) floating: the embedded examples.
        positive: (n, m) bool, which example has which label.
        weight: (n,) floating, not negative: an example counts as if it were there so many times. None: once.

    Returns:
        (m, d) float32 (float64 for float64 input). A label without example keeps its name's vector.
    """
    names, rows = _units(vectors, examples)
    if not len(rows):
        return names
    share, middle = _shares(rows, positive, weight)
    count = share.sum(dim=0).unsqueeze(1)
    mean = share.T @ rows / torch.where(count > 0, count, 1.0)
    direction = NAME_COUNTS * unit_rows(names - middle) + count * unit_rows(mean - middle)
    length = torch.linalg.vector_norm(names - middle, dim=1, keepdim=True)
    return torch.where(count > 0, middle + length * unit_rows(direction), names)


@full_precision
def aim_labels(
    vectors: Tensor, examples: Tensor, positive: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Where training draws the documents of each label, and what it sees them from.

    Names alone would draw documents away from where they lie together already, which costs most where labels are many
    and their documents alike; of broad labels, a few examples say little. The mean of n examples is as reliable as n r
    / (1 + (n - 1) r) (Spearman and Brown), r the mean cosine of two examples of a label, seen from the mean of all. So
    far a label is moved from its name to where `mix_labels` has it.

    Where cosines crowd, unlike texts too have one near 1, and pushing all of them to zero would undo what the encoder
    knows. So both are seen from the middle between the mean example and the mean name, times the cosine that an example
    and a name have on average: next to nothing where cosines don't crowd, which is where it would cost
    (docs/few_shot_tried.md).

    Args:
        vectors, examples, positive, weight: as for `mix_labels`; a weight makes no pair of an example with itself.

    Returns:
        offset: (m, d) float32 (float64 for float64 input), to be added to the unit names; zero where no label has two
            examples, or they have nothing in common (r <= 0), and for a label without example.
        centre: (d,) of the same type, to be taken from unit documents and labels.

    Raises:
        TypeError, ValueError: as `part_labels`.
    """
    _check_examples(vectors, examples, positive)
    names, rows = _units(vectors, examples)
    if not len(rows):
        return torch.zeros_like(names), torch.zeros_like(names[0])
    share, middle = _shares(rows, positive, weight)
    count, name = share.sum(dim=0), names.mean(dim=0)
    seen, own = unit_rows(rows - middle), share.square()
    alike = ((share.T @ seen).square().sum(dim=1) - own.T @ seen.square().sum(dim=1)).sum()
    pairs = (count.square() - own.sum(dim=0)).sum()
    r = (alike / torch.where(pairs > 0, pairs, 1.0)).clamp(0, 1)
    reliable = count * r / (1 + (count - 1).clamp(min=0) * r)
    offset = reliable.unsqueeze(1) * (mix_labels(vectors, examples, positive, weight=weight) - names)
    return offset, (middle @ name).clamp(min=0) * (middle + name) / 2


@full_precision
def part_labels(
    vectors: Tensor,
    examples: Tensor,
    positive: Tensor,
    centre: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Label vectors that part the labels' examples from one another, not far from the names.

    Logistic regression with no constant and the names for a start: rows and names are seen from the centre c, a label's
    logit is 10 w . (k^ - c), and w, which starts at u(q^ - c), is held there by 0.03 / 2 |10 w - 10 u(q^ - c)|^2, as
    heavy as one example's loss (docs/few_shot_tried.md).

    Args:
        vectors: (m, d) floating: the embedded names.
        examples: (n, d) floating: the embedded examples.
        positive: (n, m) bool, which example has which label; one with several counts for each in part.
        centre: (d,) mean of the unit documents; None takes that of the examples.
        weight: (n,) floating, not negative: an example counts as if it were there so many times. None: once.

    Returns:
        (m, d) float32 (float64 for float64 input): c + |q^ - c| u(w). A label without example keeps its name's vector.

    Raises:
        TypeError: vectors or examples are not floating.
        ValueError: shapes that don't fit together, or NaN or infinity.
    """
    _check_examples(vectors, examples, positive)
    names, rows = _units(vectors, examples)
    share, middle = _shares(rows, positive, weight)
    labelled = share.any(dim=1)
    if not labelled.any():
        return names
    middle = middle if centre is None else centre.to(rows)
    seen, share = (rows - middle)[labelled], share[labelled] / positive.to(rows.device)[labelled].sum(1, keepdim=True)
    counts = share.sum(dim=1, keepdim=True)
    start = SHARPNESS * unit_rows(names - middle)
    w = start.clone()
    search = torch.optim.LBFGS([w], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def loss() -> Tensor:
        """Sets the gradient too; in blocks, as a matrix of all examples and labels, kept for autograd, may be large."""
        total, w.grad = PULL / 2 * (w - start).square().sum(), PULL * (w - start)
        for part in row_slices(len(seen), len(w)):
            logits = (seen[part] @ w.T).log_softmax(dim=1)
            total -= (share[part] * logits).sum()
            w.grad += (counts[part] * logits.exp_() - share[part]).T @ seen[part]
        return total

    search.step(loss)
    length = torch.linalg.vector_norm(names - middle, dim=1, keepdim=True)
    there = share.any(dim=0).unsqueeze(1)
    return torch.where(there, middle + length * unit_rows(w), names)


def fit_labels(
    model: SurpriseModel,
    texts: Any,
    labels: Iterable[Any],
    *,
    candidate_labels: Any = None,
    hypothesis_template: Any = None,
    documents: Any = None,
    batch_size: int = BATCH_SIZE,
    **options: Any,
) -> SurpriseModel:
    """Store labels in a model whose vectors come from their names and some examples. No training.

    Args:
        model: where to store them.
        texts: n examples, any kind of input that the pipeline takes; blank ones are left out.
        labels: of each example, as for `read_targets`.
        candidate_labels: the label set; None takes the labels that occur, with the descriptions that the model stores
            of them. A label without example keeps its name.
        hypothesis_template: what to embed for a name; None keeps the model's.
        documents: of the kind to be labelled, to become the ensemble. None keeps the one there is; without one the
            labels are refined on the documents of each call.
        batch_size: of the encoder.
        options: of `FittedLabels.fit`; refine is that of `refinement_beside` unless given, "auto" without an ensemble.

    Returns:
        the model.

    Raises:
        ValueError: as `read_targets`, `inputs.iterate` and `SurpriseModel.set_labels`; or not as many labels as texts.
            Labels and ensemble then stay as they were.
    """
    names, targets = read_targets(labels, candidate_labels, feature_of(labels))
    if candidate_labels is None:
        names = inputs.described_as(names, model.candidate_labels)
    rows = [inputs.text_of(row, at) for at, row in enumerate(inputs.iterate(texts))]
    if len(rows) != len(targets):
        raise ValueError(f"there are {len(rows)} texts but {len(targets)} labels: give one label (or list) to each")
    kept = [at for at, text in enumerate(rows) if not inputs.is_blank(text)]
    if not any(targets[at] for at in kept):
        warnings.warn("no example has both a text and a label: the labels are stored as their names say", stacklevel=2)
    template = inputs.check_template(model.hypothesis_template if hypothesis_template is None else hypothesis_template)
    before = model.ensemble, model.fitted
    try:
        if documents is not None:
            model.fit_ensemble(documents, batch_size=batch_size)
        examples, _ = model.embed([str(rows[at]) for at in kept], batch_size=batch_size, rows=kept)
        centre = None if model.ensemble is None else model.ensemble.mean
        if options.get("refine") is None:
            labelled = sum(bool(targets[at]) for at in kept)
            options["refine"] = "auto" if model.ensemble is None else refinement_beside(labelled, len(model.ensemble))
        positive = as_matrix([targets[at] for at in kept], len(names))
        vectors = part_labels(model.name_vectors(names, template), examples, positive, centre)
        return model.set_labels(names, template, vectors=vectors, **options)
    except BaseException:  # an interruption too
        model.ensemble, model.fitted = before
        raise


def refinement_beside(examples: int, documents: int) -> int | str:
    """How far labels that part so many examples are refined on so many documents: "auto", or 0 where these are no more.

    Refinement finds where a group lies, which examples tell with less doubt (docs/few_shot_tried.md).
    """
    return "auto" if documents > examples else 0


# --- examples from documents -------------------------------------------------------------------------------------


def pseudo_label(
    model: SurpriseModel,
    texts: Any,
    labels: Any = None,
    *,
    per_label: int = 32,
    hypothesis_template: Any = None,
    refine: int | str = "auto",
    batch_size: int = BATCH_SIZE,
) -> Dataset:
    """A training set from documents without labels: for each label those it is surest of.

    The labels are refined on the documents, each document goes to the label of largest z, and how sure that is, is
    the gap to its second label.

    Args:
        model: the encoder.
        texts: n documents, any kind of input that the pipeline takes; blank ones are left out, of equal ones the first
            counts.
        labels: as for the pipeline's `candidate_labels`, at least two; None takes the model's.
        per_label: documents for each label, at most; a label that fits fewer gets fewer.
        hypothesis_template: None takes the model's.
        refine: rounds of refinement.
        batch_size: of the encoder.

    Returns:
        a `datasets.Dataset` with the columns "text" and "label" (a ClassLabel over all labels), surest first within
        a label: `SurpriseTrainer(model, train_dataset=...)` takes it as it is, descriptions of the labels too. Names
        are strings, and files hold them alone: give `labels` again to a trainer, where they are numbers or where the
        set was read from a file.

    Raises:
        ValueError: no document with text, fewer than two labels, or no labels at all.
    """
    from datasets import Dataset, Features, Value

    if labels is None and model.candidate_labels is None:
        raise ValueError("no labels: pass labels=[...], or store some with model.set_labels([...])")
    names = inputs.as_labels(model.candidate_labels if labels is None else labels)
    if len(names) < 2:
        raise ValueError("pseudo_label needs at least two labels: of one label every document is equally sure")
    inputs.positive_int("per_label", per_label)
    rows = (inputs.text_of(row, at) for at, row in enumerate(inputs.iterate(texts)))
    documents = [text for text in dict.fromkeys(rows) if text is not None and not inputs.is_blank(text)]
    if not documents:
        raise ValueError("none of the documents has any text")
    template = model.hypothesis_template if hypothesis_template is None else hypothesis_template
    emb, _ = model.embed(documents, batch_size=batch_size)
    vectors = model.label_vectors(names, inputs.check_template(template)).to(emb.device)
    z = FittedLabels.fit(vectors, emb, weight=1, refine=refine).z(emb)
    found = surest(z, per_label)
    features = Features({"text": Value("string"), "label": as_class_label(names)})
    return Dataset.from_dict({"text": [documents[i] for i, _ in found], "label": [at for _, at in found]}, features)


def surest(z: Tensor, per_label: int) -> list[tuple[int, int]]:
    """(document, label) of those that each label is surest of, by label, surest first.

    Args:
        z: (n, m) floating, m at least 2. A document belongs to its largest, by its gap to the second.
        per_label: documents for each label, at most.
    """
    best, at = z.topk(2, dim=1)
    gap = torch.nan_to_num(best[:, 0] - best[:, 1])
    found: list[tuple[int, int]] = []
    for label in range(z.shape[1]):
        mine = (at[:, 0] == label).nonzero().flatten()
        found += [(i, label) for i in mine[gap[mine].argsort(descending=True, stable=True)[:per_label]].tolist()]
    return found


# --- how right they are ------------------------------------------------------------------------------------------


@full_precision
def judge_decisions(emb: Tensor, vectors: Tensor, fitted: FittedLabels, positive: Tensor) -> dict[str, float]:
    """Accuracy and macro F1 of the decisions by cosine and by surprise (`targets.accuracy_and_f1`).

    Args:
        emb: (n, d) floating: the documents.
        vectors: (m, d) floating: the labels.
        fitted: the same labels, against an ensemble.
        positive: (n, m) bool, on the CPU, with a label somewhere.

    Returns:
        cosine_accuracy, cosine_f1, surprise_accuracy, surprise_f1.
    """
    k = int(positive.sum(dim=1).max())
    decided = {
        "cosine": torch.topk(unit_rows(emb) @ unit_rows(vectors).T, k, dim=1).indices,
        "surprise": fitted.rank(emb, k)[1],
    }
    return {
        f"{way}_{name}": value
        for way, best in decided.items()
        for name, value in accuracy_and_f1(best.cpu(), positive).items()
    }
