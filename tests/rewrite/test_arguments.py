"""Arguments of calls in unusual sources: the edit is right, or it is refused with a reason. No file is broken."""

from __future__ import annotations

import difflib

import pytest

from slipstream.records import Edit
from slipstream.rewrite.errors import PatchError
from slipstream.testing.projects import Project, argument

IMPORTS = "import torch\nfrom torch.utils.data import DataLoader\n"

# The source, the text that identifies its line, and the lines that the diff may remove and add.
RIGHT = {
    "plain": (
        "loader = DataLoader(data, batch_size=4)  # fast\n",
        "- loader = DataLoader(data, batch_size=4)  # fast",
        "+ loader = DataLoader(data, batch_size=4, num_workers=2)  # fast",
    ),
    "no_arguments": ("loader = DataLoader( )\n", "- loader = DataLoader( )", "+ loader = DataLoader(num_workers=2 )"),
    "alias": (
        "from torch.utils.data import DataLoader as DL\nloader = DL(data)\n",
        "- loader = DL(data)",
        "+ loader = DL(data, num_workers=2)",
    ),
    "module_alias": (
        "import torch.utils.data as tud\nloader = tud.DataLoader(data)\n",
        "- loader = tud.DataLoader(data)",
        "+ loader = tud.DataLoader(data, num_workers=2)",
    ),
    "assigned_alias": (
        "Loader = torch.utils.data.DataLoader\nloader = Loader(data)\n",
        "- loader = Loader(data)",
        "+ loader = Loader(data, num_workers=2)",
    ),
    "partial": (
        "import functools\nmake = functools.partial(DataLoader, batch_size=4)\nloader = make(data)\n",
        "- loader = make(data)",
        "+ loader = make(data, num_workers=2)",
    ),
    "dotted": (
        "loader = torch.utils.data.DataLoader(data)\n",
        "- loader = torch.utils.data.DataLoader(data)",
        "+ loader = torch.utils.data.DataLoader(data, num_workers=2)",
    ),
    "trailing_comma": ("loader = DataLoader(\n    data,\n    batch_size=4,  # small\n)\n", "+     num_workers=2,"),
    "no_trailing_comma": (
        "loader = DataLoader(\n    data,\n    batch_size=4  # small\n)\n",
        "-     batch_size=4  # small",
        "+     batch_size=4,  # small",
        "+     num_workers=2",
    ),
    "aligned": (
        "loader = DataLoader(data,\n                    batch_size=4)\n",
        "-                     batch_size=4)",
        "+                     batch_size=4, num_workers=2)",
    ),
    "hugging": (
        "loader = DataLoader(Data(\n    1,\n    2,\n), batch_size=4)\n",
        "- ), batch_size=4)",
        "+ ), batch_size=4, num_workers=2)",
    ),
    "lambda": (
        "make = lambda: DataLoader(data)\n",
        "- make = lambda: DataLoader(data)",
        "+ make = lambda: DataLoader(data, num_workers=2)",
    ),
    "decorator": (
        "@register(DataLoader(data))\ndef train(): pass\n",
        "- @register(DataLoader(data))",
        "+ @register(DataLoader(data, num_workers=2))",
    ),
    "default": (
        "def train(loader=DataLoader(data)): pass\n",
        "- def train(loader=DataLoader(data)): pass",
        "+ def train(loader=DataLoader(data, num_workers=2)): pass",
    ),
    "method": (
        "class Runner:\n\tdef loader(self):\n\t\treturn DataLoader(\n\t\t\tself.data,\n\t\t)\n",
        "+ \t\t\tnum_workers=2,",
    ),
    "semicolons": (
        "a = 1; loader = DataLoader(data); b = 2\n",
        "- a = 1; loader = DataLoader(data); b = 2",
        "+ a = 1; loader = DataLoader(data, num_workers=2); b = 2",
    ),
    "walrus": (
        "if (loader := DataLoader(data)): pass\n",
        "- if (loader := DataLoader(data)): pass",
        "+ if (loader := DataLoader(data, num_workers=2)): pass",
    ),
    "comprehension": (
        "loaders = [DataLoader(d) for d in (a, b)]\n",
        "- loaders = [DataLoader(d) for d in (a, b)]",
        "+ loaders = [DataLoader(d, num_workers=2) for d in (a, b)]",
    ),
    "backslash": (
        "loader = \\\n    DataLoader(data)\n",
        "-     DataLoader(data)",
        "+     DataLoader(data, num_workers=2)",
    ),
    "parenthesised": (
        "loader = (DataLoader)((data))\n",
        "- loader = (DataLoader)((data))",
        "+ loader = (DataLoader)((data), num_workers=2)",
    ),
    "unicode": (
        "größe = 4; loader = DataLoader(daten, größe)  # für Bilder\n",
        "- größe = 4; loader = DataLoader(daten, größe)  # für Bilder",
        "+ größe = 4; loader = DataLoader(daten, größe, num_workers=2)  # für Bilder",
    ),
    "no_newline_at_end": (
        "loader = DataLoader(data)",
        "- loader = DataLoader(data)",
        "+ loader = DataLoader(data, num_workers=2)",
    ),
    "given": (
        "loader = DataLoader(data, num_workers=8)\n",
        "- loader = DataLoader(data, num_workers=8)",
        "+ loader = DataLoader(data, num_workers=2)",
    ),
    "given_without_name": (
        "loader = DataLoader(data, 4, True, None, None, 8, pad)\n",
        "- loader = DataLoader(data, 4, True, None, None, 8, pad)",
        "+ loader = DataLoader(data, 4, True, None, None, 2, pad)",
    ),
    "super": (
        "class Loader(DataLoader):\n    def __init__(self, data):\n        super().__init__(data, batch_size=4)\n",
        "-         super().__init__(data, batch_size=4)",
        "+         super().__init__(data, batch_size=4, num_workers=2)",
    ),
}
PIECES = {
    "alias": "DL(",
    "assigned_alias": "Loader(data)",
    "partial": "make(data)",
    "super": "super()",
    "no_trailing_comma": "= DataLoader(",
    "parenthesised": "(DataLoader)",
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_argument_and_nothing_else(project: Project, name: str) -> None:
    source, *expected = RIGHT[name]
    source = IMPORTS + source
    project.write(source)
    edit = argument(project.site(PIECES.get(name, "DataLoader(")), observed="8")
    changed = [
        line
        for line in difflib.ndiff(source.split("\n"), project.text(edit).split("\n"))
        if line.startswith(("- ", "+ "))
    ]
    assert changed == expected


LEFT = {
    "keywords": ("loader = DataLoader(data, **load())\n", "**load(): add the argument there"),
    "shared_keywords": (
        "a = {'num_workers': 8}\ntest = DataLoader(t, **a)\nloader = DataLoader(d, **a)\n",
        "other calls also use",
    ),
    "stars": ("loader = DataLoader(*arguments)\n", "*arguments"),
    "setting": ("loader = DataLoader(data, num_workers=args.workers)\n", "set args.workers to 2"),
    "other_value": ("loader = DataLoader(data, num_workers=3)\n", "the session saw 8: tune again"),
    "two_calls": ("train, test = DataLoader(a), DataLoader(b)\n", "2 calls of DataLoader"),
    "by_getattr": ('loader = getattr(torch.utils.data, "DataLoader")(data)\n', "no call of DataLoader"),
    "generator": ("loader = DataLoader(x for x in data)\n", "generator without parentheses"),
    "from_a_table": ("kinds = {'a': DataLoader}\nloader = kinds['a'](data)\n", "no call of DataLoader"),
    "odd_comma": ("loader = DataLoader(\n    data  # these, and\n    ,\n)\n", "comment"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_written_is_left_with_its_reason(project: Project, name: str) -> None:
    source, reason = LEFT[name]
    project.write(IMPORTS + source)
    site = project.site("= DataLoader(" if name == "odd_comma" else source.strip().split("\n")[-1])
    assert reason in project.why_left(argument(site, observed="8"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "a = {'batch_size': 4}\nloader = DataLoader(data, **a)",
            "a = {'batch_size': 4}\nloader = DataLoader(data, **a, num_workers=2)",
        ),
        (
            "a = dict(batch_size=4)\nloader = DataLoader(data, **a)",
            "a = dict(batch_size=4)\nloader = DataLoader(data, **a, num_workers=2)",
        ),
        (
            "a = dict(num_workers=8)\nloader = DataLoader(data, **a)",
            "a = dict(num_workers=2)\nloader = DataLoader(data, **a)",
        ),
        (
            'a = {"num_workers": 8,}\nloader = DataLoader(data, **a)',
            'a = {"num_workers": 2,}\nloader = DataLoader(data, **a)',
        ),
    ],
)
def test_dictionaries_that_the_file_shows_whole(project: Project, before: str, after: str) -> None:
    project.write(IMPORTS + before)
    assert project.text(argument(project.site("loader ="), observed="8")) == IMPORTS + after


@pytest.mark.parametrize("made", ["a = load()", "a = {}\na['num_workers'] = 8", "a = {**b}", "a = {}\na.update(c)"])
def test_dictionaries_that_it_does_not_show(project: Project, made: str) -> None:
    """The value in the dictionary is overridden for this call only."""
    project.write(f"{IMPORTS}{made}\nloader = DataLoader(data, **a)  # fast\n")
    site = project.site("loader =")
    patched = project.text(argument(site, observed="8"), argument(site, "timeout", "0", is_if_given=True))
    assert 'DataLoader(data, **{**a, "num_workers": 2, "timeout": 0})  # fast\n' in patched


def test_all_arguments_of_a_call_or_none(project: Project) -> None:
    project.write(IMPORTS + "loader = DataLoader(data, num_workers=args.workers)\n")
    site = project.site("args.workers")
    edits = [
        argument(site, observed="0"),
        argument(site, "persistent_workers", "True"),
        argument(site, "prefetch_factor", "4"),
    ]
    project.why_left(*edits)

    project.write(IMPORTS + "loader = DataLoader(data)\n")
    site = project.site("loader =")
    edits = [
        argument(site, observed="0"),
        argument(site, "persistent_workers", "True"),
        argument(site, "prefetch_factor", "4"),
    ]
    assert "DataLoader(data, num_workers=2, persistent_workers=True, prefetch_factor=4)" in project.text(*edits)


def test_calls_inside_each_other(project: Project) -> None:
    """The inner call's line gets the outer call's comma, and is still recognised."""
    project.write(IMPORTS + "loader = DataLoader(\n    data,\n    torch.Generator()\n)\n")
    edits = [argument(project.site("= DataLoader(")), argument(project.site("Gen"), "device", "'cpu'", "Generator")]
    assert project.text(*edits).endswith("(\n    data,\n    torch.Generator(device='cpu'),\n    num_workers=2\n)\n")


def test_if_given(project: Project) -> None:
    project.write(IMPORTS + "loader = DataLoader(data, num_workers=8, persistent_workers=True)\n")
    site = project.site("loader =")
    edits = [
        argument(site, text="0", observed="8"),
        argument(site, "persistent_workers", "False", observed="True", is_if_given=True),
        argument(site, "prefetch_factor", "None", observed="2", is_if_given=True),
    ]
    assert project.text(*edits).endswith("DataLoader(data, num_workers=0, persistent_workers=False)\n")


def test_two_techniques_with_the_same_edit_write_it_once(project: Project) -> None:
    project.write(IMPORTS + "loader = DataLoader(data)\n")
    site = project.site("loader =")
    assert project.text(argument(site), argument(site)).count("num_workers") == 1


def test_copies_on_one_line(project: Project) -> None:
    project.write("import torch\nx, y = x.to(device), batch['y'].to(device)\n")
    site = project.site("x, y")
    edit = argument(site, "non_blocking", "True", "to", observed="False", num_calls=2)
    assert "x.to(device, non_blocking=True), batch['y'].to(device, non_blocking=True)" in project.text(edit)
    assert "2 calls of to" in project.why_left(argument(site, "non_blocking", "True", "to", observed="False"))

    project.write("import torch\nx = x.cuda()\n")
    assert "x.cuda(non_blocking=True)" in project.text(argument(project.site("x ="), "non_blocking", "True", "cuda"))

    project.write("import torch\nx = x.to(device, torch.float32, False)\n")
    edit = argument(project.site("x ="), "non_blocking", "True", "to", observed="False")
    assert "x.to(device, torch.float32, True)" in project.text(edit)

    project.write("import torch\nx = x.to(device, False)\n")
    edit = argument(project.site("x ="), "non_blocking", "True", "to", observed="False")
    assert "without names" in project.why_left(edit)


def test_a_method_on_a_line_of_its_own(project: Project) -> None:
    """Since Python 3.11 the line of a call is the line of its name. Before, it was the line of the expression."""
    project.write("import torch\noptimizer = (torch.optim\n    .AdamW(model.parameters()))\n")
    for piece in ("optimizer =", ".AdamW"):
        edit = argument(project.site(piece), "fused", "True", "AdamW")
        assert ".AdamW(model.parameters(), fused=True))" in project.text(edit)


def test_the_trainers_arguments_are_found_wherever_they_stand(project: Project) -> None:
    project.write(
        "from transformers import TrainingArguments as TA\nargs = TA(\n    output_dir='x',\n)\ntrainer.train()\n"
    )
    edit = argument(project.site("trainer.train"), "dataloader_num_workers", "2", "TrainingArguments", observed="0")
    assert "    dataloader_num_workers=2,\n" in project.text(edit)


def test_a_source_that_has_changed_is_refused(project: Project) -> None:
    project.write(IMPORTS + "loader = DataLoader(data)\n")
    edit = argument(project.site("loader ="))
    project.write(IMPORTS + "print('new')\nloader = DataLoader(data)\n")
    with pytest.raises(PatchError, match=r"line 3, is not what the session recorded .*Tune it again"):
        project.patch(edit)
    project.write(IMPORTS + "loader = DataLoader(other)\n")
    with pytest.raises(PatchError, match="has changed since"):
        project.patch(edit)


def test_what_our_own_lines_moved_is_no_change_of_the_source(project: Project) -> None:
    """The edits of a call and of a variable were left to the user. Since then a statement was added above the call."""
    project.write(IMPORTS + "loader = getattr(torch.utils.data, 'DataLoader')(data)\n")
    threads = Edit("cpu_threads", "start", None, text="torch.set_num_threads(1)")
    variable = Edit("workers", "environment", None, argument="OMP_WAIT_POLICY", text="PASSIVE")
    edits = (argument(project.site("loader =")), variable, threads)
    first = project.patch(*edits)
    (file,) = first.files
    assert b"OMP_WAIT_POLICY" not in file.after and len(first.left) == 2
    project.write(file.after)
    again = project.patch(*edits)
    assert not again.files and {one.edit.technique for one in again.left} == {"workers"}


def test_another_technique_named_by_the_same_call(project: Project) -> None:
    project.write(IMPORTS + "loader = DataLoader(data)\n")
    site = project.site("loader =")
    patch = project.patch(argument(site), Edit("allocator", "by_hand", None, text="A=1", reason="before Python starts"))
    assert len(patch.files) == 1 and [one.text for one in patch.left] == ["A=1"]
