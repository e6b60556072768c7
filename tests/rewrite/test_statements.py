"""Statements that are inserted before, around and after the user's own."""

from __future__ import annotations

import pytest

from slipstream.records import Edit, Site
from slipstream.testing.projects import Project, argument

LOOP = """import torch

def train(model, loader):
    # the update
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        out = model(x)
        loss = criterion(out, '''a
text''')
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
AUTOCAST = 'torch.autocast("cpu", dtype=torch.bfloat16)'
LAYOUT = ".to(memory_format=torch.channels_last)"


def start(text: str = "torch.set_num_threads(1)") -> Edit:
    return Edit("cpu_threads", "start", None, text=text)


def around(site: Site) -> Edit:
    return Edit("mixed_precision", "around", site, call="model", text=AUTOCAST)


def images(site: Site, argument: str = "0", call: str = "model") -> Edit:
    return Edit("channels_last", "input", site, call=call, argument=argument, text=LAYOUT)


def compiled(site: Site, name: str = "model") -> Edit:
    return Edit("compile", "before", site, call="SGD", argument=name, text="{model}.compile()")


def test_after_the_imports(project: Project) -> None:
    project.write(
        '#!/usr/bin/env python\n"""Trains."""\nimport os\nimport torch\n\nfor step in range(3): pass\nimport late\n'
    )
    assert project.text(start()) == (
        '#!/usr/bin/env python\n"""Trains."""\nimport os\nimport torch\n\ntorch.set_num_threads(1)\n\n'
        "for step in range(3): pass\nimport late\n"
    )


def test_torch_by_the_name_that_the_file_has(project: Project) -> None:
    project.write("import torch as th\nfrom torch import nn\n")
    assert project.text(start()) == "import torch as th\nfrom torch import nn\n\nth.set_num_threads(1)\n"


def test_torch_is_imported_where_only_parts_of_it_are(project: Project) -> None:
    project.write("import os\nfrom torch import nn\nmodel = nn.Linear(1, 1)")
    edits = [start(), start('torch.set_float32_matmul_precision("high")')]
    assert project.text(edits[0]) == (
        "import os\nimport torch\nfrom torch import nn\n\ntorch.set_num_threads(1)\nmodel = nn.Linear(1, 1)"
    )
    assert project.text(*edits) == (
        "import os\nimport torch\nfrom torch import nn\n\ntorch.set_num_threads(1)\n"
        'torch.set_float32_matmul_precision("high")\nmodel = nn.Linear(1, 1)'
    )


def test_a_last_line_without_an_ending(project: Project) -> None:
    project.write("import torch")
    assert project.text(start()) == "import torch\n\ntorch.set_num_threads(1)\n"


def test_start_comes_behind_the_import_of_torch(project: Project) -> None:
    """The script may have an import above the block of imports with torch, because it must come before torch."""
    above = "import os\ntry:\n    import comet_ml\nexcept ImportError:\n    comet_ml = None\n"
    project.write(f"{above}import numpy, torch\nimport yaml\nif os.sep:\n    pass\nimport val\n")
    expected = (
        f"{above}import numpy, torch\nimport yaml\n\ntorch.set_num_threads(1)\nif os.sep:\n    pass\nimport val\n"
    )
    assert project.text(start()) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\ntry:\n    import torch\nexcept ImportError:\n    pass\n", "does not import torch at its top"),
        ("import torch\nif big:\n    torch.set_num_threads(4)\n", "train.py:3 has torch.set_num_threads(4)"),
        ("from trainer import main\nmain()\n", "does not import torch at its top"),
        ("from torch import nn\ntorch = None\n", "the name torch for something else"),
    ],
)
def test_start_is_left(project: Project, source: str, reason: str) -> None:
    project.write(source)
    assert reason in project.why_left(start())


def test_a_flag_that_is_assigned(project: Project) -> None:
    project.write("import torch\ntorch.backends.cudnn.benchmark = False\n")
    assert "train.py:2 has" in project.why_left(start("torch.backends.cudnn.benchmark = True"))


def variable(name: str = "OMP_WAIT_POLICY") -> Edit:
    return Edit("workers", "environment", None, argument=name, text="PASSIVE")


def test_before_the_imports(project: Project) -> None:
    set_it = 'os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")\n\n'
    head, rest = '"""Trains."""\nfrom __future__ import annotations\nimport time\n', "import numpy\nimport torch\n"
    for gap in ("\n", ""):
        project.write(head + gap + rest)
        assert project.text(variable()) == f"{head}import os\n\n{set_it}{rest}"
    project.write('"""Trains."""\n' + rest)
    assert project.text(variable()) == f'"""Trains."""\nimport os\n\n{set_it}{rest}'
    project.write(head + rest)
    both = project.text(variable(), variable("OTHER"))
    assert both.count("import os\n") == 1 and both.index("OTHER") < both.index("import numpy")

    project.write("import os\nimport sys\ntry:\n    import apex\nexcept ImportError: pass\nimport torch\n")
    assert project.text(variable()).startswith(f"import os\nimport sys\n\n{set_it}try:\n    import apex\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import time\n", "imports nothing that reads the variable"),
        ("import torch, os\nos.environ['OMP_WAIT_POLICY'] = 'ACTIVE'\n", "line 2 sets OMP_WAIT_POLICY"),
        ("os = None\nimport torch\n", "the name os for something else"),
    ],
)
def test_before_the_imports_is_left(project: Project, source: str, reason: str) -> None:
    project.write(source)
    assert reason in project.why_left(variable())


def test_a_variable_goes_with_what_it_is_for(project: Project) -> None:
    project.write("import torch\nloader = DataLoader(data, num_workers=args.workers)\n")
    assert "args.workers" in project.why_left(argument(project.site("loader ="), observed="0"), variable())


def test_before_the_optimizer_and_above_its_comment(project: Project) -> None:
    project.write(LOOP)
    patched = project.text(compiled(project.site("SGD")))
    assert patched == LOOP.replace("    # the update\n", "    model.compile()\n    # the update\n")


def test_the_model_by_its_name_where_the_optimizer_is_built(project: Project) -> None:
    project.write(
        "import torch\nclass T:\n\tdef setup(self):\n\t\tif True: self.o = torch.optim.SGD(self.net.parameters())\n"
    )
    assert "\t\tself.net.compile()\n\t\tif True: self.o" in project.text(compiled(project.site("SGD"), "self.net"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("o = torch.optim.SGD(groups)", "does not name the model"),
        ("o = torch.optim.SGD([*a.parameters(), *b.parameters()])", "does not name the model"),
        ("o = torch.optim.SGD(self.parameters())", "which is not the model"),
        ("o = torch.optim.SGD(make().parameters())", "which is not the model"),
        ("o = getattr(torch.optim, 'SGD')(model.parameters())", "no call of SGD"),
    ],
)
def test_before_is_left(project: Project, line: str, reason: str) -> None:
    project.write(f"import torch\n{line}\n")
    assert reason in project.why_left(compiled(project.site("o =")))


def test_around_forward_and_loss(project: Project) -> None:
    project.write(LOOP)
    assert project.text(around(project.site("model(x)"))) == LOOP.replace(
        """        out = model(x)
        loss = criterion(out, '''a
text''')
        optimizer.zero_grad()
""",
        f"""        with {AUTOCAST}:
            out = model(x)
            loss = criterion(out, '''a
text''')
        optimizer.zero_grad()
""",
    )


def test_around_ends_with_the_loss(project: Project) -> None:
    forward = "    out = model(x)\n    loss = criterion(out)\n    loss += penalty\n"
    project.write(f"import torch\nfor x in d:\n{forward}    seen.update(loss.item())\n    loss.backward()\n")
    patched = project.text(around(project.site("model(x)")))
    assert patched.endswith("        loss += penalty\n    seen.update(loss.item())\n    loss.backward()\n")


def test_around_to_the_return(project: Project) -> None:
    project.write("import torch\ndef step(model, x):\n\tout = model(x)\n\treturn out.sum()\n")
    patched = project.text(around(project.site("model(x)")))
    assert patched.endswith(f"\twith {AUTOCAST}:\n\t\tout = model(x)\n\t\treturn out.sum()\n")


def test_around_in_a_block_with_another_indent_than_the_files_first(project: Project) -> None:
    project.write("import torch\nif True:\n    pass\ndef step(model, x):\n\tout = model(x)\n\treturn out.sum()\n")
    patched = project.text(around(project.site("model(x)")))
    assert patched.endswith(f"\twith {AUTOCAST}:\n\t\tout = model(x)\n\t\treturn out.sum()\n")
    project.write("import torch\nif True:\n\tpass\ndef step(model, x):\n  out = model(x)\n  return out.sum()\n")
    patched = project.text(around(project.site("model(x)")))
    assert patched.endswith(f"  with {AUTOCAST}:\n      out = model(x)\n      return out.sum()\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("model(x).sum().backward()", "in one statement"),
        ("out = model(x)\nprint(out)", "no backward() follows"),
        ("a = model(x) + model(y)\na.backward()", "2 times"),
    ],
)
def test_around_is_left(project: Project, body: str, reason: str) -> None:
    project.write(f"import torch\n{body}\n")
    assert reason in project.why_left(around(project.site("model(x)")))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("model(x)", f"model(x{LAYOUT})"),
        ("model(images[rows])", f"model(images[rows]{LAYOUT})"),
        ("model(x / 255, y)", f"model((x / 255){LAYOUT}, y)"),
        ("model((x), y)", f"model((x){LAYOUT}, y)"),
        ("model(y if y else x)", f"model((y if y else x){LAYOUT})"),
    ],
)
def test_behind_what_the_model_is_given(project: Project, call: str, expected: str) -> None:
    project.write(f"import torch\nloss = criterion({call}, y)\n")
    assert project.text(images(project.site("loss"))) == f"import torch\nloss = criterion({expected}, y)\n"


def test_behind_a_named_input(project: Project) -> None:
    project.write("import torch\nloss = self.net(mask=m, pixels=x)\n")
    edit = images(project.site("loss"), "pixels", "self.net")
    assert f"self.net(mask=m, pixels=x{LAYOUT})" in project.text(edit)
    project.write("import torch\nloss = self.net(**batch)\n")
    assert "not an argument of their own" in project.why_left(images(project.site("loss"), "pixels", "self.net"))


SCALED = """import torch

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # walk
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
"""
UNSCALED = """import torch

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # walk
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
"""


def in_half(site: Site) -> list[Edit]:
    text = 'torch.autocast("cuda", dtype=torch.float16)'
    scaler = 'torch.amp.GradScaler("cuda")'
    return [
        Edit("mixed_precision", "around", site, call="model", text=text),
        Edit("mixed_precision", "scaler", site, call="model", argument="SGD", text=scaler),
    ]


def test_scaler(project: Project) -> None:
    project.write(UNSCALED)
    assert project.text(*in_half(project.site("model(x)"))) == SCALED


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            "        optimizer.step()",
            "        if last:\n            optimizer.step()",
            "optimizer.step() is not one plain",
        ),
        ("loss.backward()", "loss.backward(retain_graph=True)", "the loss.backward() is not one plain"),
        ("        schedule.step()", "        schedule.step()\n        other.backward()", "the loss.backward() is not"),
        ("torch.nn.utils.clip", "weight.grad.mul_(2)\n        clip", "gradients are used"),
        ("def train(model, loader):", "def train(model, loader, scaler):", "the name scaler is already used"),
        ("torch.optim.SGD", "make", "exactly one SGD(...) to a name"),
    ],
)
def test_scaler_is_left(project: Project, before: str, after: str, reason: str) -> None:
    project.write(UNSCALED.replace(before, after))
    assert reason in project.why_left(*in_half(project.site("model(x)")))


def called(site: Site) -> Edit:
    return Edit("compile", "callee", site, call="model", argument="torch.compile(model)", text="compiled")


def test_another_name_where_it_trains(project: Project) -> None:
    project.write(LOOP)
    assert project.text(called(project.site("model(x)"))) == LOOP.replace(
        "    for x, y", "    compiled = torch.compile(model)\n    for x, y"
    ).replace("model(x)", "compiled(x)")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("y = model(x)\ny.backward()\n", "not in a loop that trains"),
        ("for x in d:\n    y = model(x)\n", "not in a loop that trains"),
        ("for x in d:\n    y = model(x)\n    y.backward()\n    model = other\n", "assigns another value to"),
        ("compiled = 1\nfor x in d:\n    y = model(x)\n    y.backward()\n", "the name compiled is already used"),
    ],
)
def test_another_name_is_left(project: Project, source: str, reason: str) -> None:
    project.write("import torch\n" + source)
    assert reason in project.why_left(called(project.site("model(x)")))


def test_statements_of_one_technique_are_written_together(project: Project) -> None:
    """Weights in channels_last gain nothing if the images have another layout."""
    project.write("import torch\no = torch.optim.SGD(groups)\nloss = model(x)\n")
    turned = Edit("channels_last", "before", project.site("o ="), call="SGD", text="{model}" + LAYOUT)
    project.why_left(turned, images(project.site("loss")))
    project.write("import torch\no = torch.optim.SGD(model.parameters())\nloss = model(x)\n")
    turned = Edit("channels_last", "before", project.site("o ="), call="SGD", text="{model}" + LAYOUT)
    by_hand = Edit("channels_last", "by_hand", project.site("loss"), text=LAYOUT, reason="behind the images")
    assert "behind the images" in project.why_left(turned, by_hand)
    patch = project.patch(turned, by_hand, start())
    project.write(patch.files[0].after)
    again = project.patch(turned, by_hand, start())
    assert not again.files and len(again.left) == 2, "a line that our own edit has moved is no change of the source"


def test_everything_at_once(project: Project) -> None:
    project.write(LOOP)
    edits = [
        Edit("fused_optimizer", "argument", project.site("SGD"), call="SGD", argument="fused", text="True"),
        Edit("channels_last", "before", project.site("SGD"), call="SGD", text="{model}" + LAYOUT),
        images(project.site("model(x)")),
        compiled(project.site("SGD")),
        around(project.site("model(x)")),
        start(),
    ]
    patched = project.text(*edits)
    assert patched.startswith("import torch\n\ntorch.set_num_threads(1)\n")
    assert f"    model{LAYOUT}\n    model.compile()\n    # the update\n" in patched
    assert f"            out = model(x{LAYOUT})\n" in patched and "lr=0.1, fused=True)" in patched

    edits[3] = called(project.site("model(x)"))
    patched = project.text(*edits)
    assert f"    compiled = torch.compile(model)\n    for x, y in loader:\n        with {AUTOCAST}:\n" in patched
    assert f"            out = compiled(x{LAYOUT})\n" in patched
