"""Gradients are disabled in evaluations only if the text proves that backward is not called on the results."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.records import Edit, Finding, Model, Site
from slipstream.rewrite.finding_edits import cures
from slipstream.testing.made_sessions import FILE, made_model, made_session
from slipstream.testing.projects import Project

FUNCTION = """import torch

class Runner:
    @staticmethod
    def validate(model, loader):
        model.eval()
        return sum(float(model(x).sum()) for x in loader)
"""
INLINE = """import torch
for epoch in range(3):
    for x in train:
        loss = model(x).sum()
        loss.backward()
    model.eval()
    for x in held_out:
        # look
        loss = model(x).mean()

        total += loss
    print(total)
"""


def off(site: Site, training: str = "") -> Edit:
    return Edit("grad_in_evaluation", "without_grad", site, call=training, text="torch.no_grad()")


def test_a_function_of_its_own_is_decorated(project: Project) -> None:
    project.write(FUNCTION)
    patched = project.text(off(project.site("model(x)", function="validate"), "train"))
    assert patched == FUNCTION.replace("    def validate", "    @torch.no_grad()\n    def validate")


def test_a_loop_beside_the_training_is_put_under_it(project: Project) -> None:
    project.write(INLINE)
    patched = project.text(off(project.site("mean()"), "<module>"))
    assert "    with torch.no_grad():\n        for x in held_out:\n            # look\n            loss" in patched
    assert patched.endswith("\n\n            total += loss\n    print(total)\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def run(model, x):\n    model.eval()\n    y = model(x)\n    y.backward()\n", "also calls backward"),
        ("def run(model, x):\n    return model(x)\n", "may also be used for training"),
        ("@cached\ndef run(model, x):\n    model.eval()\n    return model(x)\n", "decorators of its own"),
        ("def run(model, x):\n    model.eval()\n    yield model(x)\n", "one by one"),
        ("y = model(x)\n", "no separate loop"),
        ("model.eval()\nfor x in d:\n    y = model(x)\ny.backward()\n", "line 5 calls backward on y"),
        ("for x in d:\n    y = model(x)\n", "no eval() comes before"),
        ("model.eval()\nmodel.train()\nfor x in d:\n    y = model(x)\n", "no eval() comes before"),
        ("def run(model, d):\n    for x in d:\n        y = model(x)\n    return y\n", "may also be used for training"),
    ],
)
def test_what_may_train_is_left_alone(project: Project, source: str, reason: str) -> None:
    project.write("import torch\n" + source)
    site = project.site(next(line for line in source.split("\n") if " model(x)" in line))
    assert reason in project.why_left(off(site, ""))


def test_gradients_that_are_off_already(project: Project) -> None:
    project.write("import torch\n@torch.inference_mode()\ndef run(model, x):\n    return model(x)\n")
    assert not project.patch(off(project.site(" model(x)"))).files


def finding(cause: str = "grad_in_evaluation", line: int = 60, function: str = "validate") -> Finding:
    site = Site(FILE, line, "total += model(x)", function)
    return Finding(cause, "A title", "evidence", 1.1, "with torch.no_grad(): ...", site, advice="Look at it.")


def test_findings_without_a_technique_become_edits() -> None:
    session = msgspec.structs.replace(
        made_session(), findings=[finding(), finding("frequent_sync", 41, "main"), finding("x", 1, "main")]
    )
    first, second, _ = cures(session)
    assert (first.kind, first.call) == ("without_grad", "")
    assert (second.kind, second.text, second.reason) == ("by_hand", "with torch.no_grad(): ...", "A title. Look at it")
    techniques = msgspec.structs.replace(finding("no_workers"), techniques=["workers"])
    assert cures(msgspec.structs.replace(session, findings=[techniques])) == []


def test_where_the_evaluation_came_first_nothing_is_certain() -> None:
    model: Model = made_model(site=finding().site)
    (edit,) = cures(msgspec.structs.replace(made_session(model=model), findings=[finding()]))
    assert edit.kind == "by_hand" and "used for training" in edit.reason
    (edit,) = cures(msgspec.structs.replace(made_session(), findings=[finding(function="main")]))
    assert edit.call == "main"


def test_a_decorated_function_has_its_loop_wrapped(project: Project) -> None:
    project.write("import torch\n@timed\ndef run(model, d):\n    model.eval()\n    for x in d:\n        y = model(x)\n")
    assert "    with torch.no_grad():\n        for x in d:\n            y" in project.text(
        off(project.site(" model(x)"))
    )
    project.write(
        "import torch\n@timed\ndef run(model, d):\n    model.eval()\n    for x in d:\n        yield model(x)\n"
    )
    assert "one by one" in project.why_left(off(project.site(" model(x)")))
