"""What a score promises: how often documents that do not belong to a label reach it ("none of these").

The gaussian estimate takes the whole ensemble for a bell curve. Its upper tail is neither: it holds each label's own
documents, and the others are skewed. Here it is measured on the ensemble, with a document counted as foreign to label
q by 1 - p_q, p = softmax over labels of t z of refined labels. These are refined on the other half of the documents: a
label has moved towards the documents that it attracted, the wrong ones too, which a new document does not meet. t is
1.7, or less where p would be surer on average than 1/m + (A - 1/m) / S (`belonging`):

- A, the square of how often the labels of both halves agree: groups that change from half to half are not the labels';
- S, how much more of the scatter lies between the groups than lay between those of the names: where names meant little
  here, documents came together for another reason, and may belong to no label at all. Refined labels are their
  groups, whatever these are called: for them S counts as 1, and above 2, where hardly any name stands for its group,
  as infinite.

docs/accuracy.md tells on which sets this was chosen and tried.

Two laws come out, each an increasing map from z to the quantile of a normal, one for all labels, so that the order of
labels stays that of z:

- of a label: z of foreign documents, all labels together (refined labels: again of the other half's labels);
- of a document: the largest evidence (`kinship`) of a document that belongs to no label. The largest of m is larger
  than any one; a document's own label is taken away by as much of its p as is beyond 1/m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .ensemble import Ensemble
from .kinship import Kinship
from .ops import normal_cdf
from .refinement import Judgement

KNOTS, REACH = 61, 3.0  # of a map: so many, from -3 to 3 sigma, or as far as 10 documents lie beyond
BEYOND = 10
SHARPEST = 1.7  # t
ELSEWHERE = 2.0  # S of refined labels


@dataclass(frozen=True)
class Law:
    """An increasing map of z to a standard normal: linear between knots, beyond them with the slope of that half.

    Attributes:
        z: (K,) float64, increasing.
        normal: (K,) float64, what each becomes.
    """

    z: Tensor
    normal: Tensor

    @classmethod
    def fit(cls, z: Tensor, weight: Tensor, documents: int) -> Law:
        """From values (v,) and weights (v,) of `documents` documents."""
        rare = min(max(BEYOND / max(documents, 1), math.erfc(REACH / math.sqrt(2)) / 2), 0.3)
        reach = -float(torch.special.ndtri(torch.tensor(rare, dtype=torch.float64)))
        normal = torch.linspace(-reach, reach, KNOTS, dtype=torch.float64, device=z.device)
        value, order = z.to(torch.float64).sort()
        rank = weight.to(torch.float64)[order].cumsum(dim=0)
        at = torch.searchsorted(rank, normal_cdf(normal) * rank[-1]).clamp(max=len(value) - 1)
        knots = value[at].clamp(-1e6, 1e6)
        keep = torch.cat((knots[1:] > knots[:-1], knots.new_ones(1, dtype=torch.bool)))  # of equal ones the last
        return cls(knots[keep], normal[keep])

    def __call__(self, z: Tensor) -> Tensor:
        """float64, of the shape of z; infinities stay."""
        z = z.to(torch.float64)
        if len(self.z) < 3:
            return z
        at = torch.searchsorted(self.z, z.contiguous()).clamp(1, len(self.z) - 1)
        slope = self.normal.diff() / self.z.diff()
        inside = self.normal[at - 1] + (z - self.z[at - 1]) * slope[at - 1]
        middle, last = len(self.z) // 2, len(self.z) - 1
        for end, beyond in ((0, z < self.z[0]), (last, z > self.z[last])):
            tilt = (self.normal[end] - self.normal[middle]) / (self.z[end] - self.z[middle])
            inside = torch.where(beyond, self.normal[end] + (z - self.z[end]) * tilt, inside)
        return inside


@dataclass(frozen=True)
class Tails:
    """The two laws, and what evidence needs. Build with `fit`.

    Attributes:
        label, document: the laws.
        kinship: gives the evidence.
    """

    label: Law
    document: Law
    kinship: Kinship

    @classmethod
    def fit(
        cls,
        documents: Tensor,
        context: Ensemble,
        z: Tensor,
        z_refined: Tensor,
        verdict: Judgement,
        linear: tuple[Tensor, Tensor],
        *,
        refined: bool,
    ) -> Tails:
        """From documents (n, d) of the ensemble.

        Args:
            documents: (n, d), a sample of the ensemble.
            context: the ensemble's mean and covariance.
            z: (n, m) for the labels that scores are to be had for.
            z_refined: (n, m) for refined labels, refined on other documents.
            verdict: of `refinement.judge` on these labels.
            linear: of the labels as they were given, `FittedLabels.to_linear`.
            refined: whether scores are to be had for refined labels.
        """
        own = belonging(z_refined, verdict.agreement, verdict.scatter)
        kinship, evidence = Kinship.fit(documents, context, linear, own)
        two, at = evidence.topk(min(2, evidence.shape[1]), dim=1)
        chance = 1 / max(own.shape[1], 2)  # what the likeliest label of a document of none has too
        belongs = ((own.gather(1, at[:, :1])[:, 0] - chance) / (1 - chance)).clamp_min(0)
        weight = torch.stack((1 - belongs, belongs))[: two.shape[1]]
        taken = own
        if refined:
            taken = belonging(z_refined, verdict.agreement, math.inf if verdict.scatter > ELSEWHERE else 1.0)
        law = Law.fit(z.flatten(), 1 - taken.flatten(), len(documents))
        return cls(law, Law.fit(strength(two).T.flatten(), weight.flatten(), len(documents)), kinship)

    def accept(self, keys: Tensor) -> Tensor:
        """1 - how often a document of no label gets as far as keys (n, d) floating: (n,) float64 in [0, 1].

        Nothing is checked here: `FittedLabels.accept` does.
        """
        return normal_cdf(self.document(strength(self.kinship.evidence(keys).amax(dim=1))))

    def promise(self) -> float:
        """How often foreign documents exceed the gaussian z that promises 1 in 100, as a multiple of that."""
        z = -torch.special.ndtri(torch.tensor([0.01], dtype=torch.float64, device=self.label.z.device))
        return float(normal_cdf(-self.label(z))) / 0.01

    def select(self, index: Tensor | slice | list[int]) -> Tails:
        """Of some labels, with the laws of all."""
        return replace(self, kinship=self.kinship.select(index))

    def to(self, device: torch.device | str) -> Tails:
        """The same on another device."""
        return Tails.from_state({name: value.to(device) for name, value in self.state().items()})

    def state(self) -> dict[str, Tensor]:
        """As flat tensors."""
        parts = {"label_z": self.label.z, "label_normal": self.label.normal}
        parts |= {"evidence_z": self.document.z, "evidence_normal": self.document.normal}
        return {f"tails_{name}": value for name, value in (parts | self.kinship.state()).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Tails:
        """From what `state` gave.

        Raises:
            ValueError: a part is missing, or is no tensor.
        """
        named = ((name.removeprefix("tails_"), part) for name, part in state.items() if name.startswith("tails_"))
        parts = {name: part for name, part in named if isinstance(part, Tensor)}
        try:
            label, document = (Law(parts[f"{name}_z"], parts[f"{name}_normal"]) for name in ("label", "evidence"))
            return cls(label, document, Kinship.from_state(parts))
        except KeyError as error:
            lacks = f"fitted labels lack a part: `tails_{error.args[0]}` belongs to the estimator 'tail'"
            raise ValueError(lacks) from error


def strength(evidence: Tensor) -> Tensor:
    """Evidence, 0 at most, on a scale where its law is smooth at the upper end too."""
    return -(-evidence).log()


def belonging(z: Tensor, agreement: float, scatter: float = 1.0) -> Tensor:
    """p (n, m) float64, how likely each document belongs to each label; a single label has nothing to compare with.

    Args:
        z: (n, m) for refined labels.
        agreement, scatter: of these, as `refinement.judge` finds them.
    """
    z = z.to(torch.float64).clamp(-1e6, 1e6)
    if z.shape[1] < 2:
        return torch.zeros_like(z)
    chance = 1 / z.shape[1]
    most = chance + max(agreement**2 - chance, 0.0) / max(scatter, 1.0)
    sharp, low = SHARPEST, 0.0
    if _confidence(z, sharp) > most:
        for _ in range(12):  # bisection: within 0.001
            middle = (low + sharp) / 2
            low, sharp = (low, middle) if _confidence(z, middle) > most else (middle, sharp)
    return (sharp * z).softmax(dim=1)


def _confidence(z: Tensor, sharp: float) -> float:
    return float((sharp * z).softmax(dim=1).amax(dim=1).mean())
