"""slipstream.DataLoader replaces torch's DataLoader in the right call with one import, or is refused with a reason."""

from __future__ import annotations

import pytest

from slipstream.records import Edit, Site
from slipstream.testing.projects import Project, argument

HEAD = "import random\nimport torch\nfrom torch.utils.data import DataLoader\n\n"


def own_loader(site: Site, call: str = "DataLoader") -> list[Edit]:
    edits = [
        Edit("thread_workers", "loader", site, call=call, text="slipstream.DataLoader"),
        Edit("thread_workers", "argument", site, call=call, argument="thread_workers", text="2"),
    ]
    return edits


RIGHT = {
    "plain": (
        HEAD + "loader = DataLoader(data, shuffle=True)  # fast\n",
        "import random\nimport slipstream\nimport torch\nfrom torch.utils.data import DataLoader\n\n"
        "loader = slipstream.DataLoader(data, shuffle=True, thread_workers=2)  # fast\n",
    ),
    "alias": (
        "from torch.utils.data import DataLoader as DL\nloader = DL(data)\nother = DL(data)\n",
        "import slipstream\nfrom torch.utils.data import DataLoader as DL\n"
        "loader = slipstream.DataLoader(data, thread_workers=2)\nother = DL(data)\n",
    ),
    "dotted": (
        "import torch\nloader = torch.utils.data.DataLoader(data)\n",
        "import slipstream\nimport torch\nloader = slipstream.DataLoader(data, thread_workers=2)\n",
    ),
    "module_alias": (
        "import torch.utils.data as tud\nloader = tud.DataLoader(data)\n",
        "import slipstream\nimport torch.utils.data as tud\nloader = slipstream.DataLoader(data, thread_workers=2)\n",
    ),
    "own_lines": (
        HEAD + "loader = DataLoader(\n    data,\n    batch_size=4\n)\n",
        "import random\nimport slipstream\nimport torch\nfrom torch.utils.data import DataLoader\n\n"
        "loader = slipstream.DataLoader(\n    data,\n    batch_size=4,\n    thread_workers=2\n)\n",
    ),
    "imported_before": (
        "import slipstream\n" + HEAD + "loader = DataLoader(data)\n",
        "import slipstream\n" + HEAD + "loader = slipstream.DataLoader(data, thread_workers=2)\n",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_call_and_one_import(project: Project, name: str) -> None:
    source, expected = RIGHT[name]
    project.write(source)
    assert project.text(*own_loader(project.site("loader ="))) == expected


LEFT = {
    "subclass": (
        "class Mine(DataLoader):\n    pass\n\nloader = Mine(data)\n",
        "Mine is not torch's DataLoader itself: make it use, or derive it from, slipstream.DataLoader",
    ),
    "super": (
        "class Mine(DataLoader):\n    def __init__(self, data):\n        loader = super().__init__(data)\n",
        "super().__init__ is not torch's DataLoader itself",
    ),
    "partial": (
        "import functools\nmake = functools.partial(DataLoader, batch_size=4)\nloader = make(data)\n",
        "make is not torch's DataLoader itself",
    ),
    "other_library": (
        "from monai.data import DataLoader as Medical\nloader = Medical(data)\n",
        "Medical is not torch's DataLoader itself",
    ),
    "name_taken": ("slipstream = 3\nloader = DataLoader(data)\n", "uses the name slipstream for something else"),
    "stars": ("loader = DataLoader(*arguments)\n", "*arguments: add the argument there"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_written_is_left_with_its_reason(project: Project, name: str) -> None:
    source, reason = LEFT[name]
    project.write(HEAD + source)
    call = "Mine" if name == "subclass" else "DataLoader"
    assert reason in project.why_left(*own_loader(project.site("loader ="), call))


def test_two_loaders_and_another_technique_on_the_same_call(project: Project) -> None:
    project.write(HEAD + "train = DataLoader(data)\ntest = DataLoader(data)\n")
    train, test = project.site("train ="), project.site("test =")
    text = project.text(*own_loader(train), *own_loader(test), argument(train, "pin_memory", "True"))
    assert text.count("import slipstream\n") == 1
    assert "train = slipstream.DataLoader(data, thread_workers=2, pin_memory=True)\n" in text
    assert "test = slipstream.DataLoader(data, thread_workers=2)\n" in text
