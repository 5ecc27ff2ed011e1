"""The weighted binary focal loss of the paper over the whole matrix of documents and labels, and what feeds it.

For a document k and a label q with target i = 1 where the label is right and eps where it is not:

    p = probability(cos(k, q))
    l = - i (1 - p)^gamma log p  -  (1 - i) p^gamma log(1 - p)        averaged over all pairs

Of m labels one is right, so that in a plain mean (the paper's) a document's right label counts 1/m. `balanced` gives
the right and the wrong labels of a document half the mean each, whatever m is.

The paper forms the pairs (k, q) and encodes both sides of each; here documents and labels are encoded once and their
product is the matrix, which has the same mean.

The op (`surprise_hf.ops.weighted_focal_loss`) computes loss and slope dl/dcos in one pass, so that between forward and
backward no more than one (documents, labels) matrix is kept. Paper: section 3.2 (training).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import inputs
from .ops import PROBABILITIES, check_focal_options, weighted_focal_loss

__all__ = ["PROBABILITIES", "LabelMatrixLoss", "WeightedFocalLoss", "weighted_focal_loss"]


class WeightedFocalLoss(nn.Module):
    """`weighted_focal_loss` as a module, with class weights.

    Args:
        gamma, epsilon, probability, delta, balanced: as for `weighted_focal_loss`.
        class_weight: (m,) finite, none negative, or None. A document counts with the mean weight of its labels (1 if it
            has none), as if it occurred that many times.

    Inputs of the call: keys (B, d), queries (m, d), positive (B, m) bool, sample_weight (B,) or None.

    Returns: loss () and cross-entropy ().

    Raises:
        ValueError: an option that does not fit; class weights that are none, or not one for each label.

    Examples:
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
        check_focal_options(gamma, epsilon, probability, delta)
        self.gamma, self.epsilon, self.probability, self.delta = gamma, epsilon, probability, delta
        self.balanced = inputs.flag("balanced", balanced)
        weight = None if class_weight is None else torch.as_tensor(class_weight, dtype=torch.float32)
        if weight is not None and (weight.dim() != 1 or not (weight.isfinite() & (weight >= 0)).all()):
            raise ValueError(f"class_weight must be one finite number from 0 on for each label, got {class_weight}")
        self.register_buffer("class_weight", weight, persistent=False)

    def forward(
        self, keys: Tensor, queries: Tensor, positive: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss and cross-entropy."""
        weight = sample_weight
        if self.class_weight is not None:
            if len(self.class_weight) != positive.shape[1]:
                raise ValueError(f"class_weight has {len(self.class_weight)} weights for {positive.shape[1]} labels")
            mine = positive.to(self.class_weight.dtype)
            count = mine.sum(dim=1)
            by_class = torch.where(count > 0, (mine * self.class_weight).sum(dim=1) / count.clamp(min=1), 1.0)
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


SHORTER = 0.75  # texts shorter than this share of the longest are encoded apart


# --- for a trainer -----------------------------------------------------------------------------------------------


class LabelMatrixLoss(nn.Module):
    """The loss of a batch of documents against a fixed set of labels: each is encoded once in a step.

    With more labels than `labels_per_step`, a step encodes those of its documents and, in turn, some others; the
    vectors of the rest are those of the last time. So a document still meets every label, and a step's cost does
    not grow with their number. Each label is encoded at least once in m / (labels_per_step - its documents' labels)
    steps. On a CPU, where padding costs as much as text, documents of very different length go apart.

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
        offset, centre: what `aim` was given.
        total: (2,) float32, sum of the batches' cross-entropies and their number, of training steps.
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
        self.dim = getattr(model, "truncate_dim", None)  # of `model` itself, which is wrapped later
        self.encoded = {"documents": 0, "labels": 0}
        self.register_buffer("total", torch.zeros(2), persistent=False)  # no float64: Apple's GPUs lack it
        self.offset: Tensor | None = None
        self.centre: Tensor | None = None
        self._known: Tensor | None = None  # (m, d), each label when last encoded
        self._turn = 0

    def aim(self, offset: Tensor | None = None, centre: Tensor | None = None) -> None:
        """See each label `offset` (m, d) beside its name, and unit documents and labels from `centre` (d,).

        As `few_shot.aim_labels` has found them. None for both: the cosine as it is.
        """
        self.offset, self.centre, self._known, self._turn = offset, centre, None, 0

    def memory(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the weights: what `aim` was given, and what later steps know of earlier ones
        (nothing where each encodes all labels).
        """
        known = {} if self._known is None else {"known": self._known, "turn": torch.tensor(self._turn)}
        return {name: x for name, x in (("offset", self.offset), ("centre", self.centre)) if x is not None} | known

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Go on from what `memory` gave."""
        self.aim(memory.get("offset"), memory.get("centre"))
        self._known, self._turn = memory.get("known"), int(memory.get("turn", 0))

    def label_rows(self, vectors: Tensor, rows: Any = slice(None)) -> Tensor:
        """Embedded names (those of some labels) as the loss compares them."""
        return vectors if self.offset is None else self.document_rows(vectors) + self.offset[rows]

    def document_rows(self, vectors: Tensor) -> Tensor:
        """Embedded documents as the loss compares them."""
        return vectors if self.centre is None else nn.functional.normalize(vectors.to(self.centre), dim=1) - self.centre

    def forward(self, features: list[dict[str, Any]], labels: tuple[Tensor, Tensor | None]) -> Tensor:
        """The focal loss; the cross-entropy is added to `total` when training."""
        positive, sample_weight = labels
        keys = self.document_rows(self._documents(features[0]))
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

    def _documents(self, features: dict[str, Any]) -> Tensor:
        parts, order = _by_length(features)
        vectors = [self.model(part)["sentence_embedding"][:, : self.dim] for part in parts]
        return vectors[0] if order is None else torch.cat(vectors)[order]

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
        return self.label_rows(self.model(features)["sentence_embedding"][:, : self.dim], rows)


def _by_length(features: dict[str, Any]) -> tuple[list[dict[str, Any]], Tensor | None]:
    """Features on a CPU in parts without most of their padding, and each text's place among the parts' texts.

    One part, and None, where they are not (texts, tokens) padded to the right, or there is little to save.
    """
    mask = features.get("attention_mask")
    tensors = {name: x for name, x in features.items() if isinstance(x, Tensor)}
    if mask is None or mask.device.type != "cpu" or any(x.shape != mask.shape for x in tensors.values()):
        return [features], None
    length = mask.sum(dim=1)
    order = length.argsort(descending=True, stable=True)
    starts = [0]
    for at, size in enumerate(length[order].tolist()):
        if size < SHORTER * length[order[starts[-1]]]:
            starts.append(at)
    if len(starts) == 1 or not mask[:, 0].all():
        return [features], None
    parts = []
    for rows in order.tensor_split(starts[1:]):
        longest = int(length[rows[0]])
        parts.append({**features, **{name: x[rows, :longest] for name, x in tensors.items()}})
    return parts, order.argsort()
