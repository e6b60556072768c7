"""What other lines need of a statement, read from its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.observe.source_statements import read_statement
from slipstream.records import Site, Statement

LOOP = """
import torch
total, step, best = 0.0, 0, None
for epoch in range(10):
    for i, batch in enumerate(loader):
        loss = model(batch).mean()
        loss.backward()
        {line}
        step += 1
    validate(model)
print(total, history, best)
"""


def statement_of(folder: Path, text: str, line: str) -> Statement:
    file = folder / f"script_{abs(hash(text))}.py"
    file.write_text(text)
    number = next(at for at, one in enumerate(text.splitlines(), 1) if line.splitlines()[0] in one)
    found = read_statement(Site(str(file), number, line))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("print(loss.item())", []),
        ("torch.save(model.state_dict(), 'last.pt')", []),
        ("shown = loss.item()", []),  # nothing reads it
        ("log.write(f'{loss.item()}')", []),
        ("total += loss.item()", ["total"]),
        ("best = evaluate(model)", ["best"]),
        ("history.append(loss.item())", ["history"]),
        ("metrics['loss'] = loss.item()", ["metrics"]),
        ("self.last = loss.item()", ["self.last"]),
        ("running = 0.9 * running + 0.1 * loss.item()", ["running"]),
        ("optimizer.step()", ["optimizer"]),
        ("weight.clamp_(0, 1)", ["weight"]),
        ("print(best := loss.item())", ["best"]),
    ],
)
def test_what_the_rest_of_the_script_needs(tmp_path: Path, line: str, needed: list[str]) -> None:
    found = statement_of(tmp_path, LOOP.format(line=line), line)
    assert found.needed == needed and found.is_skippable == (not needed)
    assert (found.counter, found.guard, found.is_in_loop) == ("i", "", True)
    assert {"loss", "batch", "i", "step"} <= set(found.changing)


def test_a_name_of_another_function_is_its_own(tmp_path: Path) -> None:
    text = "def a():\n    for _ in range(3):\n        loss = f()\ndef b(loss):\n    return loss\n"
    assert statement_of(tmp_path, text, "loss = f()").needed == []
    shared = text.replace("def a():\n", "def a():\n    global loss\n")
    assert statement_of(tmp_path, shared, "loss = f()").needed == ["loss"]


@pytest.mark.parametrize(
    "line",
    ["return loss.item()", "if loss.item() > 3: print(loss)", "print(\n            loss.item())", "a = 1; print(a)"],
)
def test_only_a_whole_line_can_stand_under_a_condition(tmp_path: Path, line: str) -> None:
    assert not statement_of(tmp_path, LOOP.format(line=line), line).is_skippable


@pytest.mark.parametrize(
    ("loop", "counter"),
    [
        ("for step in range(100):", "step"),
        ("for step in tqdm(range(100)):", "step"),
        ("for n, x in enumerate(tqdm(loader)):", "n"),
        ("for x in loader:", ""),
        ("while True:\n    seen += 1", "seen"),
        ("while True:\n    seen += len(x)", ""),
    ],
)
def test_the_counter_of_the_loop(tmp_path: Path, loop: str, counter: str) -> None:
    assert statement_of(tmp_path, f"{loop}\n    print(1)\n", "print(1)").counter == counter


def test_a_line_that_already_runs_now_and_then(tmp_path: Path) -> None:
    found = statement_of(tmp_path, LOOP.format(line="if step % 10 == 0:\n            print(loss)"), "print(loss)")
    assert found.guard == "step % 10 == 0"


VALIDATE = """
def accuracy(model, loader):
    model.eval()
    right = sum(score(model(x)) for x in loader)
    {line}
    return right
def score(y):
    return y.argmax()
def fit(model):
    model.loss().backward()
"""


@pytest.mark.parametrize(
    ("line", "only_evaluates"),
    [
        ("model.train()", True),
        ("right.backward()", False),
        ("optimizer.step()", False),
        ("fit(model)", False),  # which trains
        ("yield right", False),
    ],
)
def test_a_function_that_only_evaluates(tmp_path: Path, line: str, only_evaluates: bool) -> None:
    found = statement_of(tmp_path, VALIDATE.format(line=line), "right = sum(")
    assert (found.function, found.only_evaluates) == ("accuracy", only_evaluates)


def test_a_function_for_both_is_no_evaluation(tmp_path: Path) -> None:
    text = VALIDATE.format(line="pass")
    assert not statement_of(tmp_path, text.replace("    model.eval()\n", ""), "right = sum(").only_evaluates
    assert not statement_of(tmp_path, text.replace("def acc", "@cached\ndef acc"), "right = sum(").only_evaluates


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_statement(Site(str(tmp_path / "gone.py"), 3)) is None
    (tmp_path / "broken.py").write_text("for x in")
    assert read_statement(Site(str(tmp_path / "broken.py"), 1)) is None
    assert read_statement(Site("<string>", 1)) is None
