"""Does surprise help on these documents? The methods side by side on labelled ones, with intervals and one advice.

Zero-shot methods see the documents and the label names. With `shots` some documents per label are given away to
`few_shot.fit_labels` (and to SetFit, where it is installed) and left out of every method's test.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import targets
from .estimators import shuffled
from .few_shot import part_labels, refinement_beside
from .fitted import FittedLabels
from .inputs import positive_int
from .ops import unit_rows

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["HOW", "METHODS", "Comparison", "compare", "comparisons", "predictions", "split"]

# simplest first: a later one must be better than the earlier ones beyond doubt to be advised
METHODS: dict[str, dict[str, Any]] = {
    "cosine": {"weight": 0},
    "surprise": {"weight": 1},
    "refined": {"weight": 1, "refine": "auto"},
}
HOW = {
    "cosine": "surprise_weight=0",
    "surprise": "surprise_weight=1",
    "refined": 'surprise_weight=1 and refine="auto"',
    "examples": "pipe.fit_labels(texts, labels, documents=documents, surprise_weight=1)",
    "SetFit": "SetFit",
}
DRAWS = 2000
Predicted = tuple[str, Tensor, float]  # a method, its labels, seconds: as `predictions` yields them


@dataclass(frozen=True)
class Comparison:
    """What each method got right.

    Attributes:
        methods: names, in the order tried.
        labels: (m,) names.
        accuracy, f1: (methods, 3) float64: value, and the ends of its 95 % interval. F1 is the macro one.
        gain: (methods, 3) float64: accuracy over the first method, paired document by document, with its interval.
        label_f1: (methods, m) float64; NaN for a label that neither occurs nor was given.
        seconds: of each method after embedding the documents.
        documents: tested.
        advised: the method to use; where one was tried alone, that one.
        advice: one sentence.
    """

    methods: tuple[str, ...]
    labels: tuple[str, ...]
    accuracy: Tensor
    f1: Tensor
    gain: Tensor
    label_f1: Tensor
    seconds: tuple[float, ...]
    documents: int
    advised: str
    advice: str

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each method, numbers as floats: for a table or JSON."""
        parts = {"accuracy": self.accuracy, "f1": self.f1, "gain": self.gain}
        names = [f"{name}{end}" for name in parts for end in ("", "_low", "_high")]
        values = torch.cat(list(parts.values()), dim=1).tolist()
        return [
            {"method": method, **dict(zip(names, row, strict=True)), "seconds": took}
            for method, row, took in zip(self.methods, values, self.seconds, strict=True)
        ]


def predictions(
    model: SurpriseModel,
    texts: Sequence[str],
    labels: Sequence[Any],
    positive: Tensor,
    *,
    template: Any = None,
    shots: int = 0,
    seed: int = 0,
    batch_size: int = 32,
) -> Iterator[Predicted]:
    """Each method's labels for the documents that are tested, as it finishes.

    Args:
        model: the encoder.
        texts: n documents with text.
        labels: m label names.
        positive: (n, m) bool, the right ones.
        template: of the labels; None takes the model's.
        shots: documents of each label to learn from, at least two of each left for the test; 0 tries no method that
            learns.
        seed: of their choice.
        batch_size: of the encoder.

    Yields:
        name; (n', k) int64 labels of the tested documents, best first, k the most labels of a document (SetFit gives
        one); seconds it took.

    Raises:
        ValueError: `shots` for documents with several labels, or more than the documents allow, or no number.
    """
    given, tested = split(positive, shots, seed)
    documents, _ = model.embed(list(texts), batch_size=batch_size)
    # by name, whatever examples the model has been given
    names = model.name_vectors(labels, model.hypothesis_template if template is None else template)
    queries, emb = names.to(documents.device), documents[tested]
    k = max(int(positive.sum(dim=1).max()), 1)

    def ranked(vectors: Tensor, **options: Any) -> Tensor:
        return FittedLabels.fit(vectors, emb, **options).rank(emb, k)[1].cpu()

    for name, options in METHODS.items():
        started = time.perf_counter()
        yield name, ranked(queries, **options), time.perf_counter() - started
    if not shots:
        return
    started = time.perf_counter()
    moved = part_labels(queries, documents[given], positive[given], unit_rows(emb).mean(dim=0))
    options = METHODS["refined"] | {"refine": refinement_beside(len(given), len(emb))}
    yield "examples", ranked(moved, **options), time.perf_counter() - started
    try:
        import setfit  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return
    started = time.perf_counter()
    right = positive.to(torch.int64).argmax(dim=1).tolist()
    train = [(texts[i], right[i]) for i in given.tolist()]
    found = _setfit(setfit, model, train, [texts[i] for i in tested.tolist()], seed)
    yield "SetFit", found.unsqueeze(1), time.perf_counter() - started


def split(positive: Tensor, shots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Documents to learn from, `shots` of each label, and the others: int64 positions, ascending.

    Raises:
        ValueError: as `predictions`.
    """
    if isinstance(shots, int) and shots == 0:
        return torch.empty(0, dtype=torch.int64), torch.arange(len(positive))
    shots = positive_int("shots", shots)
    if int(positive.sum(dim=1).max()) > 1:
        raise ValueError("shots need documents of one label each; these have several")
    few = positive.sum(dim=0)
    least = int(few[few > 0].min()) if bool(few.any()) else 0
    if least < shots + 2:
        raise ValueError(f"shots={shots} leave too few documents to test: the rarest label has {least} in all")
    order = shuffled(positive, seed)
    chosen = [order[positive[order, label]][:shots] for label in range(positive.shape[1])]
    given = torch.cat(chosen).sort().values
    mask = torch.ones(len(positive), dtype=torch.bool)
    mask[given] = False
    return given, mask.nonzero().flatten()


def _setfit(setfit: Any, model: SurpriseModel, train: list[tuple[str, int]], texts: list[str], seed: int) -> Tensor:
    """(n,) labels by SetFit with its default arguments, on a copy of the encoder."""
    import copy
    import tempfile

    from datasets import Dataset

    with tempfile.TemporaryDirectory(prefix="surprise-hf-") as folder:
        learner = setfit.SetFitModel(model_body=copy.deepcopy(model), model_head=_logistic())
        arguments = setfit.TrainingArguments(output_dir=folder, seed=seed, report_to="none", save_strategy="no")
        columns = {"text": [text for text, _ in train], "label": [label for _, label in train]}
        setfit.Trainer(model=learner, args=arguments, train_dataset=Dataset.from_dict(columns)).train()
        return torch.as_tensor(learner.predict(texts, as_numpy=True)).to(torch.int64)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()  # SetFit's own head


# --- what the predictions are worth ------------------------------------------------------------------------------


def compare(found: Sequence[Predicted], labels: Sequence[Any], positive: Tensor) -> Comparison:
    """Accuracy, F1 and advice.

    A document with r labels is judged by its r best (`targets.accuracy_and_f1`); one without is left out. Intervals
    are bootstraps over the documents (2,000 draws, the same for every method).

    Args:
        found: what `predictions` yielded, the simplest method first.
        labels: m label names.
        positive: (n, m) bool, the right labels of the tested documents.

    Raises:
        ValueError: no document has a label, no method, or sizes that do not fit.
    """
    if not found:
        raise ValueError("there is no method to compare: `found` is empty")
    *_, last = comparisons(found, labels, positive)
    return last


def comparisons(found: Iterable[Predicted], labels: Sequence[Any], positive: Tensor) -> Iterator[Comparison]:
    """As `compare`, of the methods so far, after each of them: the last one may take minutes."""
    if positive.shape[1] != len(labels):
        raise ValueError(f"positive must have shape (documents, {len(labels)}), got {tuple(positive.shape)}")
    documents, kept = len(positive), positive.any(dim=1)
    positive = positive[kept]
    if not len(positive):
        raise ValueError("no document has a label: there is nothing to compare with")
    methods: list[str] = []
    seconds: list[float] = []
    sampled: list[tuple[Tensor, Tensor, Tensor]] = []
    for name, best, took in found:
        _check_best(name, best, documents, len(labels))
        methods.append(name)
        seconds.append(took)
        sampled.append(_sampled(best[kept].to(torch.int64), positive))
        share = [one for one, _, _ in sampled]
        advised, advice = _advice(methods, share, len(positive))
        yield Comparison(
            methods=tuple(methods),
            labels=tuple(str(label) for label in labels),
            accuracy=torch.stack([_bounds(one) for one in share]),
            f1=torch.stack([_bounds(one) for _, one, _ in sampled]),
            gain=torch.stack([_bounds(one - share[0]) for one in share]),
            label_f1=torch.stack([one for _, _, one in sampled]),
            seconds=tuple(seconds),
            documents=len(positive),
            advised=advised,
            advice=advice,
        )


def _check_best(name: str, best: Tensor, documents: int, labels: int) -> None:
    if best.dim() != 2 or not best.shape[1] or best.is_floating_point() or best.is_complex():
        raise ValueError(
            f"{name} must give labels as integers of shape (documents, k), k >= 1, got {best.dtype} of shape"
            f" {tuple(best.shape)}"
        )
    if len(best) != documents:
        raise ValueError(f"{name} gives labels for {len(best)} documents, but there are {documents}")
    least, most = int(best.min()), int(best.max())
    if not 0 <= least <= most < labels:
        raise ValueError(f"{name} gives labels from {least} to {most}, but there are {labels}, numbered from 0")


def _sampled(best: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Accuracy and macro F1 of the documents and of every draw (1 + DRAWS,), and the F1 of each label (m,)."""
    count, given = positive.sum(dim=1), targets.chosen(best, positive).double()
    right, either = given * positive, given + positive
    share, f1, of_label = [], [], []
    for times in _draws(len(positive)):
        share.append(times @ (right.sum(dim=1) / count) / len(positive))
        size = times @ either
        each = torch.where(size > 0, 2 * (times @ right) / size, torch.nan)
        f1.append(each.nanmean(dim=1))
        of_label.append(each[0])
    return torch.cat(share), torch.cat(f1), of_label[0]


def _draws(n: int) -> Iterator[Tensor]:
    """Blocks of (draws, n) float64, how often each document was drawn; the first row is the documents themselves."""
    generator = torch.Generator().manual_seed(0)
    yield torch.ones(1, n, dtype=torch.float64)
    block = max(1, min(DRAWS, (1 << 23) // n))
    for start in range(0, DRAWS, block):
        drawn = torch.randint(n, (min(block, DRAWS - start), n), generator=generator)
        times = torch.zeros(drawn.shape, dtype=torch.float64)
        yield times.scatter_add_(1, drawn, torch.ones_like(times))


def _bounds(draws: Tensor) -> Tensor:
    ends = draws[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return torch.stack((draws[0], ends[0], ends[1]))


def _advice(methods: list[str], share: list[Tensor], n: int) -> tuple[str, str]:
    """The simplest method that no other one beats beyond doubt."""
    best = 0
    for i in range(1, len(methods)):
        if _bounds(share[i] - share[best])[1] > 0:
            best = i
    name, how = methods[best], HOW.get(methods[best], methods[best])
    if best:
        gain, low, high = (100 * _bounds(share[best] - share[0])).tolist()
        over = f"{gain:+.1f} points over {methods[0]}, 95 % interval {low:+.1f} to {high:+.1f}"
        more, ahead = max(
            (100 * float(one[0] - share[best][0]), other) for one, other in zip(share, methods, strict=True)
        )
        doubt = f"; {ahead} is {more:.1f} points ahead of it, which they can't tell from chance" if more > 0 else ""
        return name, f"Use {name} ({how}): {over}, on {n:,} documents{doubt}."
    if len(methods) == 1:
        return name, f"No advice: {name} ({how}) was tried alone, on {n:,} documents."
    gap = max((100 * _bounds(one - share[0]))[0].item() for one in share[1:])
    if gap > 0:
        return name, (
            f"Stay with {name} ({how}): the best of the others is {gap:+.1f} points, which {n:,} documents can't tell"
            " from chance."
        )
    return name, f"Stay with {name} ({how}): nothing else did better on {n:,} documents."
