"""Whether a document belongs to any label at all ("none of these"): three P values of each label, combined by Fisher.

With g = k^ - m, P = (C / c + 1)^-1, c the mean eigenvalue of C, and G_q the mean of g over the documents of the
ensemble that belong to label q, each by its probability:

- z, the surprise of the label as it was given. Small: the name says little of this document.
- L = 2 g'P G_q - G_q'P G_q. Small: the group of q explains it no better than the whole ensemble does.
- -log (g'P g - L), how near it is to the group. Small: it is strange, whatever its label.

Each is measured in standard deviations from what the ensemble's documents have with their best label. The evidence for
a label is the sum of log Phi of all three; that for a document its largest. Encoders differ in which of the three
tells foreign texts: multilingual-e5-small puts bank questions in the middle of Reddit titles, where only names and
groups tell them, and others far outside (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from .ensemble import Ensemble
from .estimators import row_slices
from .ops import unit_rows


@dataclass(frozen=True)
class Kinship:
    """What the evidence needs. Build with `fit`.

    Attributes:
        centre: (d,) float64, m.
        spread: (d, d) float64, P.
        names, name_bias: (m, d) and (m,) float64, z = k^ names' + bias.
        groups, group_bias: (m, d) and (m,) float64, L = g groups' + bias.
        usual: (2, 3) float64, mean and deviation of the best z, L and nearness over the ensemble.
    """

    centre: Tensor
    spread: Tensor
    names: Tensor
    name_bias: Tensor
    groups: Tensor
    group_bias: Tensor
    usual: Tensor

    @classmethod
    def fit(
        cls, documents: Tensor, context: Ensemble, linear: tuple[Tensor, Tensor], own: Tensor
    ) -> tuple[Kinship, Tensor]:
        """From documents (n, d) of the ensemble.

        Args:
            documents: a sample of the ensemble.
            context: its mean and covariance.
            linear: W (m, d) and b (m,) of the labels as they were given, `FittedLabels.to_linear`.
            own: (n, m), how likely each document belongs to each label.

        Returns:
            The kinship, and the evidence (n, m) of the documents, as it would be without each one's part in it.
        """
        device = documents.device
        covariance, centre = context.covariance.to(device), context.mean.to(device)
        scale = (covariance.trace() / len(covariance)).clamp_min(torch.finfo(torch.float64).tiny)
        spread = torch.linalg.inv(covariance / scale + torch.eye(len(covariance), dtype=torch.float64, device=device))
        names, name_bias = (part.to(torch.float64) for part in linear)
        weight = own.sum(dim=0) + 1  # one document more, at the centre: a label of none has no group
        total = torch.zeros_like(names)
        for part in row_slices(len(documents), documents.shape[1]):
            total += own[part].T @ (unit_rows(documents[part]).to(torch.float64) - centre)
        pulled = total @ spread
        square = (pulled * total).sum(dim=1)
        mean = total / weight.unsqueeze(1)
        rest = cls(
            centre, spread, names, name_bias, 2 * mean @ spread, -square / weight.square(), centre.new_zeros(2, 3)
        )
        parts, rest_of_them = [], max(len(context) - 1, 1)
        for part in row_slices(len(documents), max(documents.shape[1], len(names))):
            g = unit_rows(documents[part]).to(torch.float64)
            z = g @ names.T + name_bias
            g = g - centre
            # without the document itself: in C (Sherman and Morrison), in m, which moves by -g / (n - 1), in its group
            far = ((g @ spread) * g).sum(dim=1, keepdim=True)
            whole = scale * rest_of_them
            left = (whole - far).clamp_min(whole / (1 + len(spread)))  # less is rounding
            along = g @ pulled.T
            norm, along, far = square + along.square() / left, along * (1 + far / left), far * (1 + far / left)
            others = weight - own[part]
            part_in_it = own[part] - (others - 1) / rest_of_them
            longer = 1 + 1 / rest_of_them
            gain = 2 * longer * (along - part_in_it * far) / others
            gain = gain - (norm - 2 * part_in_it * along + part_in_it.square() * far) / others.square()
            far = longer**2 * far
            parts.append(torch.stack((z, gain, _near(far, gain))))
        seen = torch.cat(parts, dim=1)
        best = seen.amax(dim=2)
        std = best.std(dim=1, correction=0)
        usual = torch.stack((best.mean(dim=1), torch.where(std > 1e-9, std, 1.0)))
        return replace(rest, usual=usual), _combined(seen, usual)

    def evidence(self, keys: Tensor) -> Tensor:
        """(n, m) float64, 0 or less, the larger the more likely documents (n, d) belong to a label."""
        parts = [self.names.new_empty(0, len(self.names))]
        for part in row_slices(len(keys), max(keys.shape[1], len(self.names))):
            k = unit_rows(keys[part]).to(torch.float64)
            g = k - self.centre
            far = ((g @ self.spread) * g).sum(dim=1, keepdim=True)
            gain = g @ self.groups.T + self.group_bias
            z = k @ self.names.T + self.name_bias
            parts.append(_combined(torch.stack((z, gain, _near(far, gain))), self.usual))
        return torch.cat(parts)

    def select(self, index: Tensor | slice | list[int]) -> Kinship:
        """Of some labels."""
        of_labels = ("names", "name_bias", "groups", "group_bias")
        return replace(self, **{name: getattr(self, name)[index] for name in of_labels})

    def state(self) -> dict[str, Tensor]:
        """As flat tensors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Kinship:
        """From what `state` gave; KeyError where a part is missing."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})


def _near(far: Tensor, gain: Tensor) -> Tensor:
    """- log of the squared distance to a group; rounding may leave it at 0 or below."""
    return -(far - gain).clamp_min(1e-12).log()


def _combined(seen: Tensor, usual: Tensor) -> Tensor:
    """(n, m), the sum of log Phi of the three (3, n, m) in standard deviations."""
    total = torch.zeros_like(seen[0])
    for part, (mean, std) in zip(seen, usual.T.tolist(), strict=True):
        total += torch.special.log_ndtr((part - mean) / std)
    return total
