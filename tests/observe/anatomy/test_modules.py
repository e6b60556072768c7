import functools

import torch
from torch import nn

from slipstream.observe.anatomy.modules import is_sealed, list_modules


def paths(*models: nn.Module) -> list[str]:
    return [entry.path for entry in list_modules(list(models))]


def test_one_model_has_plain_paths() -> None:
    assert paths(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))) == ["", "0", "1", "1.0"]


def test_a_loss_is_no_second_model() -> None:
    entries = list_modules([nn.CrossEntropyLoss(), nn.Sequential(nn.Linear(2, 2))])
    assert [entry.path for entry in entries] == ["CrossEntropyLoss", "", "0"]
    assert [entry.is_root for entry in entries] == [False, True, False]


def test_paths_of_several_models_begin_with_their_class() -> None:
    assert paths(nn.Linear(2, 2), nn.Bilinear(2, 2, 2)) == ["Linear", "Bilinear"]
    assert paths(nn.Linear(2, 2), nn.Linear(2, 2)) == ["Linear[0]", "Linear[1]"]


def test_a_part_that_was_called_alone_stays_a_part() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert paths(model[0], model) == ["", "0", "1"]


def test_shared_modules_are_listed_once() -> None:
    shared = nn.Linear(2, 2)
    assert paths(nn.Sequential(shared, shared)) == ["", "0"]


def test_sealed_modules() -> None:
    assert is_sealed(torch.compile(nn.Linear(2, 2), backend="eager"))
    assert is_sealed(torch.jit.script(nn.Linear(2, 2)))
    assert is_sealed(nn.MultiheadAttention(4, 2).eval())
    assert not is_sealed(nn.MultiheadAttention(4, 2))
    model = nn.Linear(2, 2)
    assert not is_sealed(model)
    model.compile(backend="eager")
    assert is_sealed(model)
    # Our seam uses the slot of compiled calls. A seam alone does not seal a module; a seam around a compiled call does.
    compiled = vars(model)["_compiled_call_impl"]

    @functools.wraps(compiled)
    def above(*args: object) -> object:
        return compiled(*args)

    vars(model)["_compiled_call_impl"] = above
    assert is_sealed(model)
    vars(model)["_compiled_call_impl"] = lambda *args: model._call_impl(*args)
    assert not is_sealed(model)
