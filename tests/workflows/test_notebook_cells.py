"""The statements of a notebook that a function needs. These tests run the source that is selected."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.workflows.notebook_cells import needed_source

CELLS = [
    "",
    "import math\nfrom collections import Counter\nmath.sqrt(4)",
    "get_ipython().run_line_magic('matplotlib', 'inline')",
    "unused = open('/no/such/file').read()",
    "SCALE = 2; shared = 3",
    "def decorate(function):\n    return function\n",
    "@decorate\ndef helper(x):\n    # stays\n    return x * SCALE\n",
    "class Net:\n    width = shared\n    def __call__(self, x):\n        return later(helper(x)) + self.width\n",
    "net = Net()\nnet.depth = 5\nsettings = {}\nsettings['lr'] = 1",
    "get_ipython().run_cell_magic('time', '', 'data = [i * shared for i in range(3)]\\n')",
    "calls = []\ndef train(extra=0):\n    unused = 'local'\n    calls.append(1)\n"
    "    return [net(x) + rate + extra for x in data], settings, len(calls)\n",
    "rate = 0.5\nrate += 0.25",
    "def later(x):\n    return x + 1\n",
    "this is not python",
    "history = train()\ntrain()\nfor _ in range(2):\n    train()",
    "slipstream.tune(train)",
]


def run(cells: list[str], call: str = "train()") -> Any:
    space: dict[str, Any] = {"__name__": "rebuilt"}
    exec(needed_source(cells, "train"), space)
    return eval(call, space)


def test_the_rebuilt_function_gives_the_same_result() -> None:
    assert run(CELLS) == ([4.75, 10.75, 16.75], {"lr": 1}, 1)


def test_statements_that_are_not_needed_are_left_out() -> None:
    source = needed_source(CELLS, "train")
    for absent in ("no/such/file", "Counter", "history", "get_ipython", "slipstream"):
        assert absent not in source
    assert "    # stays" in source, "the lines are the user's own, so that findings can refer to them"
    assert "math.sqrt" not in source, "it changes nothing that the function uses"


def test_the_last_definition_counts_and_earlier_ones_are_left_out() -> None:
    cells = ["x = expensive()", "x = 1", "def train():\n    return x\n", "def train():\n    return x + 1\n"]
    assert run(cells) == 2
    assert "expensive" not in needed_source(cells, "train")


def test_a_seed_set_between_two_imports_is_kept() -> None:
    cells = ["import random", "random.seed(7)", "import random\ndef train():\n    return random.random()\n"]
    import random

    random.seed(7)
    expected = random.random()
    assert run(cells) == expected
    assert needed_source(cells, "train").count("import random") == 1


def test_branches_and_loops_that_assign_a_needed_name_are_kept() -> None:
    cells = [
        "total = 0\nfor i in range(4):\n    total += i",
        "if total > 3:\n    mode = 'big'\nelse:\n    mode = 'small'",
    ]
    assert run([*cells, "def train():\n    return total, mode\n"]) == (6, "big")


def test_star_imports_may_define_any_name() -> None:
    assert run(["from math import *", "def train():\n    return sqrt(16)\n"]) == 4


@pytest.mark.parametrize("cell", ["get_ipython().run_cell_magic('writefile', 'x.py', 'WIDTH = 4')", "# no cell at all"])
def test_a_name_that_no_cell_defines_is_an_error_that_names_it(cell: str) -> None:
    with pytest.raises(ValueError, match=r"train\(\) needs WIDTH, and no ordinary cell .* defines it"):
        needed_source([cell, "def train():\n    return [WIDTH] + list(range(3))\n"], "train")


def test_a_method_that_calls_the_function_is_kept() -> None:
    cells = ["class Again:\n    def go(self):\n        return train()\n", "def train():\n    return Again\n"]
    assert run(cells).__name__ == "Again"
