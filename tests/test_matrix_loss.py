"""What a training step encodes, and how: documents and labels against each other, attention on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from surprise_hf.float32_attention import Float32Attention
from surprise_hf.losses import LabelMatrixLoss, weighted_focal_loss
from surprise_hf.ops import unit_rows


class Encoder(nn.Module):
    """Text "7" is row 7 of a table; counts what it is given."""

    def __init__(self, texts: int) -> None:
        super().__init__()
        self.table = nn.Embedding(texts, 4)
        self.batches: list[int] = []

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, Tensor]:
        return {"row": torch.tensor([int((prompt or "") + text) for text in texts])}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        self.batches.append(len(features["row"]))
        return {"sentence_embedding": self.table(features["row"])}


def one_of(labels: list[int], m: int) -> Tensor:
    return torch.eye(m, dtype=torch.bool)[torch.tensor(labels)]


def test_a_step_encodes_documents_and_labels_once():
    torch.manual_seed(0)
    model = Encoder(200)
    loss = LabelMatrixLoss(model, [str(i) for i in range(150)])
    value = loss([model.preprocess([str(150 + i) for i in range(16)])], (one_of([*range(16)], 150), None))
    assert model.batches == [16, 150]  # the pair routine would encode 2 * 16 * 150
    assert loss.encoded == {"documents": 16, "labels": 150}
    keys, queries = model.table.weight[150:166], model.table.weight[:150]
    torch.testing.assert_close(value, weighted_focal_loss(keys, queries, one_of([*range(16)], 150))[0])


class TokenMean(nn.Module):
    """Mean of the token's rows of a table; keeps the shapes it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.shapes: list[tuple[int, ...]] = []

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, Tensor]:
        assert prompt is None
        ids = torch.tensor([[int(text)] for text in texts])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        self.shapes.append(tuple(features["input_ids"].shape))
        mask = features["attention_mask"].unsqueeze(2)
        return {"sentence_embedding": (self.table(features["input_ids"]) * mask).sum(dim=1) / mask.sum(dim=1)}


@pytest.mark.parametrize(
    ("lengths", "shapes"),
    [
        ([3, 8, 6, 2, 7], [(3, 8), (1, 3), (1, 2)]),  # 6 is 3/4 of 8, 2 less than 3/4 of 3
        ([6, 8, 7], [(3, 8)]),
        ([4], [(1, 4)]),
    ],
)
def test_padding_is_not_encoded(lengths, shapes):
    torch.manual_seed(0)
    model, n = TokenMean(), len(lengths)
    loss = LabelMatrixLoss(model, ["0", "1", "2"])
    mask = (torch.arange(8) < torch.tensor(lengths).unsqueeze(1)).long()[:, : max(lengths)]
    features = {"input_ids": torch.randint(50, mask.shape), "attention_mask": mask, "prompt_length": 0}
    positive = one_of([i % 3 for i in range(n)], 3)
    value = loss([features], (positive, None))
    value.backward()
    assert model.shapes == [*shapes, (3, 1)]
    gradient, model.table.weight.grad = model.table.weight.grad, None
    expected = weighted_focal_loss(model(features)["sentence_embedding"], model.table.weight[:3], positive)[0]
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, model.table.weight.grad)


def test_texts_padded_to_the_left_stay_together():
    """Where a text's first token does not come first, cutting columns would move its positions."""
    model = TokenMean()
    mask = torch.tensor([[1] * 8, [0] * 6 + [1] * 2])
    loss = LabelMatrixLoss(model, ["0", "1"])
    loss([{"input_ids": torch.ones_like(mask), "attention_mask": mask}], (one_of([0, 1], 2), None))
    assert model.shapes[0] == (2, 8)


def test_documents_and_labels_are_seen_from_where_they_are_aimed_at():
    """Unit rows from a centre, labels beside their names; those that wait for their turn too."""
    torch.manual_seed(0)
    m = 20
    model = Encoder(m + 3)
    centre, offset = torch.randn(4) / 3, torch.randn(m, 4) / 3
    features, positive = model.preprocess([str(m + i) for i in range(3)]), one_of([4, 5, 6], m)
    every, some = (LabelMatrixLoss(model, [str(i) for i in range(m)], labels_per_step=step) for step in (None, 5))
    rows = unit_rows(model.table.weight)
    expected = weighted_focal_loss(rows[m:] - centre, rows[:m] - centre + offset, positive)[0]
    plain = weighted_focal_loss(rows[m:], rows[:m], positive)[0]
    assert abs(expected - plain) > 0.01
    for loss in (every, some):
        torch.testing.assert_close(loss([features], (positive, None)), plain)
        loss.aim(offset, centre)
        torch.testing.assert_close(loss([features], (positive, None)), expected)
        loss.aim()
        torch.testing.assert_close(loss([features], (positive, None)), plain)


@pytest.mark.parametrize("step", [None, 2])
def test_labels_are_read_with_the_prompt(step):
    torch.manual_seed(0)
    model, positive = Encoder(200), one_of([0, 2], 3)
    loss = LabelMatrixLoss(model, ["0", "1", "2"], labels_per_step=step, prompt="1")
    value = loss([model.preprocess(["7", "8"])], (positive, None))
    torch.testing.assert_close(
        value, weighted_focal_loss(model.table.weight[7:9], model.table.weight[10:13], positive)[0]
    )


def test_what_is_remembered_goes_on_where_it_was():
    """The vectors of labels that are not encoded in a step, and whose turn is next."""
    torch.manual_seed(0)
    m = 7
    model = Encoder(m + 1)
    whole, resumed = (LabelMatrixLoss(model, [str(i) for i in range(m)], labels_per_step=3) for _ in range(2))
    inputs = [model.preprocess([str(m)])], (one_of([5], m), None)
    whole(*inputs)  # 5, 0 and 1
    with torch.no_grad():
        model.table.weight += 1
    resumed.remember(whole.memory())
    results = []
    for loss in (whole, resumed):
        model.table.weight.grad = None
        value = loss(*inputs)
        value.backward()
        assert model.table.weight.grad.any(dim=1).nonzero().flatten().tolist() == [2, 3, 5, m]
        results.append(value.detach())
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_many_labels_take_turns():
    """150 labels do not dominate a step of 16 documents; a document still meets all of them."""
    torch.manual_seed(0)
    m, per_step = 150, 40
    model = Encoder(m + 16)
    loss = LabelMatrixLoss(model, [str(i) for i in range(m)], labels_per_step=per_step)
    features = model.preprocess([str(m + i) for i in range(16)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    first = loss([features], (one_of([*range(16)], m), None))
    assert model.batches == [16, 40, 40, 40, 30, 40]  # all labels once at the start, without gradient
    torch.testing.assert_close(
        first, weighted_focal_loss(model.table.weight[m:], model.table.weight[:m], one_of([*range(16)], m))[0]
    )
    first.backward()
    touched = model.table.weight.grad.abs().sum(dim=1) > 0
    assert touched[m:].all()
    assert touched[:m].sum() == per_step
    refreshed = {int(i) for i in touched[:m].nonzero()}
    for _ in range(5):  # (150 - 40) / (40 - 16) steps reach the others
        optimizer.step()
        optimizer.zero_grad()
        loss([features], (one_of([*range(16)], m), None)).backward()
        refreshed |= {int(i) for i in (model.table.weight.grad[:m].abs().sum(dim=1) > 0).nonzero()}
    assert refreshed == set(range(m))
    assert model.batches[6:] == [16, per_step] * 5


def test_more_labels_in_a_batch_than_a_step_takes():
    model = Encoder(20)
    loss = LabelMatrixLoss(model, [str(i) for i in range(10)], labels_per_step=2)
    loss([model.preprocess(["11", "12", "13"])], (one_of([4, 5, 6], 10), None))
    assert model.batches[-1] == 3


def test_total_counts_training_steps_only():
    model = Encoder(5)
    loss = LabelMatrixLoss(model, ["0", "1"])
    inputs = ([model.preprocess(["2", "3"])], (one_of([0, 1], 2), None))
    _, ce = weighted_focal_loss(model.table.weight[2:4], model.table.weight[:2], one_of([0, 1], 2))
    loss(*inputs)
    loss(*inputs)
    with torch.no_grad():
        loss(*inputs)
    loss.eval()
    loss(*inputs)
    torch.testing.assert_close(loss.take_total(), torch.tensor([2 * ce.item(), 2.0]))
    assert not loss.take_total().any()


@pytest.mark.parametrize("kind", ["bools", "bfloat16", "float32", "none"])
@pytest.mark.parametrize("named", [0, 2, 3])
def test_attention_in_float32_under_autocast(kind, named):
    """The result and its gradient are float32's, rounded once; what is float32 anyway is left alone.

    Of a mask of any kind, with so many of query, key and value by name.
    """
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 8, generator=draw) for _ in range(3))
    narrow = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    wide = [x.detach().float().requires_grad_() for x in narrow]
    allowed = torch.arange(7) < torch.tensor([[[[7]]], [[[4]]]])
    bias = torch.zeros(2, 1, 1, 7).masked_fill(~allowed, -10.0)
    masks = {"bools": (allowed, allowed), "bfloat16": (bias.bfloat16(), bias), "float32": (bias, bias)}
    mask, same = masks.get(kind, (None, None))

    def attend(rows, mask):
        first, rest = (
            rows[: 3 - named],
            dict(zip(("query", "key", "value")[3 - named :], rows[3 - named :], strict=True)),
        )
        return nn.functional.scaled_dot_product_attention(*first, **rest, attn_mask=mask)

    expected = attend(wide, same)
    expected.sum().backward()
    with torch.autocast("cpu", torch.bfloat16), Float32Attention():
        found = attend(narrow, mask)
        assert torch.equal(found, expected.bfloat16())
        assert (q[0, 0] @ k[0, 0].T).dtype == torch.bfloat16  # products are autocast's
    found.sum().backward()
    for one, other in zip(narrow, wide, strict=True):
        assert torch.equal(one.grad, other.grad.bfloat16())
    with Float32Attention():
        assert torch.equal(attend(wide, same), expected)
