import torch
from torch import nn

from slipstream.observe.anatomy.padding import Inputs, note_embedding, note_inputs, share_of_padding


def share(*args: object, **kwargs: object) -> float | None:
    inputs = Inputs()
    note_inputs(inputs, args, kwargs)
    return share_of_padding(inputs)


def ragged(pad: int = 0) -> torch.Tensor:
    rows = torch.arange(1, 33).view(4, 8) + 100
    for row, length in enumerate((8, 6, 4, 2)):
        rows[row, length:] = pad
    return rows


def test_padding_from_a_mask() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    assert share(input_ids=torch.arange(8).view(2, 4), attention_mask=mask) == 0.5
    assert share({"input_ids": torch.arange(8).view(2, 4), "attention_mask": mask}) == 0.5
    assert share(torch.randn(2, 4), src_key_padding_mask=mask == 0) == 0.5


def test_trailing_runs_of_one_id() -> None:
    assert share(ragged()) == 12 / 32
    assert share(ragged(pad=7)) == 12 / 32


def test_padding_from_an_embedding_with_a_padding_index() -> None:
    inputs = Inputs()
    note_embedding(inputs, nn.Embedding(200, 4, padding_idx=0), (ragged(),))
    assert share_of_padding(inputs) == 12 / 32


def test_padding_that_cannot_be_recognised() -> None:
    assert share(torch.randint(0, 50_000, (8, 64))) is None
    assert share(torch.randn(4, 8)) is None
    assert share(torch.zeros(4, 8, dtype=torch.long)) is None
    equal = ragged()
    equal[:, 2:] = 0
    assert share(equal) is None  # rows of equal length: the id may be part of the text
    inside = ragged()
    inside[:, 0] = 0
    assert share(inside) is None  # the id also occurs inside the rows
    assert share() is None
