"""Findings as edits: sums that stay on the device, tables that are converted once, values kept without their graph.

Each edited script runs and gives the original's numbers. What the text does not prove is left to the user.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.records import Edit, Finding, Leak, Site
from slipstream.rewrite.finding_edits import cures
from slipstream.testing.made_sessions import FILE, made_model, made_session
from slipstream.testing.projects import Project

HEAD = """import torch
torch.manual_seed(0)
weight = torch.randn(8, requires_grad=True)
data = torch.randn(12, 4, 8)
said = []
"""


def run(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "patched"}
    exec(compile(source, "train.py", "exec"), scope)
    return scope


def summed(site: Site) -> Edit:
    return Edit("frequent_sync", "running_sum", site, argument=".double()", text="total += loss.detach()")


SUMS = {
    "epoch": (
        "for epoch in range(3):\n    total = 0.0\n    for x in data:\n        loss = (x @ weight).square().mean()\n"
        "        loss.backward()\n        total += loss.item()  # sum\n    said.append(total / len(data))\n",
        "        total += loss.detach().double()  # sum\n    total = float(total)\n"
        "    said.append(total / len(data))\n",
    ),
    "weighted": (
        "total = 0\nfor x in data:\n    loss = (x @ weight).abs().mean()\n    loss.backward()\n"
        "    total += loss.item() * len(x)\nsaid.append(total)",
        "    total += loss.detach().double() * len(x)\ntotal = float(total)\nsaid.append(total)",
    ),
    "now_and_then": (
        "total, step = 0.0, 0\nfor x in data:\n    total += float((x @ weight).sum())\n    step += 1\n"
        "    if step % 5 == 0:\n        said.append(f'{total / 5:.9f}')\n        total = 0.0\n",
        "    total += (x @ weight).sum().detach().double()\n    step += 1\n"
        "    if step % 5 == 0:\n        said.append(f'{float(total) / 5:.9f}')\n        total = 0.0\n",
    ),
    "count": (
        "def count():\n    total = 0\n    for x in data:\n        total += (x @ weight > 0).eq(True).sum().item()\n"
        "    return total\nsaid.append(count())\n",
        "        total += (x @ weight > 0).eq(True).sum().detach()\n    total = int(total)\n    return total\n"
        "said.append(count())\n",
    ),
    "named_count": (
        "def total(): pass\ndef count():\n    n: int = 0\n    for x in data:\n        right = (x > 0).sum()\n"
        "        n += right.item()\n    return n\nsaid.append(count())\n",
        "        n += right.detach()\n    n = int(n)\n    return n\nsaid.append(count())\n",
    ),
    "empty": (
        "total = 0.0\nfor x in data[:0]:\n    total += (x.sum()).item()\nsaid.append(total)\n",
        "    total += (x.sum()).detach().double()\ntotal = float(total)\nsaid.append(total)\n",
    ),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_read_where_it_is_used(project: Project, name: str) -> None:
    before, after = SUMS[name]
    project.write(HEAD + before)
    patched = project.text(summed(project.site("+= " if name != "now_and_then" else "+= float")))
    assert patched.endswith(after)
    originals, ours = run(HEAD + before)["said"], run(patched)["said"]
    assert originals == ours and [type(one) for one in originals] == [type(one) for one in ours]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("t = 0.0\nfor x in d:\n    t += x.item()\n    bar.set_postfix(loss=t)\n", "line 5 reads t in every step"),
        ("t = 0.0\nfor x in d:\n    t += x.item()\n    if t > 5: break\n", "line 5 reads t in every step"),
        ("t = 0.0\nwhile t < 5:\n    t += x.item()\n", "line 3 reads t in every step"),
        ("t = 1.0\nfor x in d:\n    t += x.item()\n", "a value other than 0"),
        ("t = 0\nfor x in d:\n    t += x.item()\n", "whole number is not clear"),
        ("t = 0.0\nfor x in d:\n    t += x.item() / y.item()\n", "more than add one number"),
        ("t = 0.0\nfor x in d:\n    t += x.item()\n    t += 1\n", "something else is also added"),
        ("t = 0.0\nt += x.item()\n", "no loop contains"),
        ("t = 0.0\nfor x in d:\n    t += x.item()\ndef report():\n    print(t)\n", "another function uses t"),
        ("def run():\n    global t\n    t = 0.0\n    for x in d:\n        t += x.item()\n", "a value other than 0"),
        ("try:\n    t = 0.0\n    for x in d:\n        t += x.item()\nfinally:\n    print(t)\n", "after an exception"),
        ("t = 0.0\nfor x in d:\n    t += x.item()\n    if x:\n        print(f'{t=}')\n", "prints t with its name"),
        ("class A:\n    t = 0.0\n    for x in d:\n        t += x.item()\n", "an attribute of a class"),
        ("class A:\n    def f(self):\n        for x in d:\n            self.t += x.item()\n", "does not add to one"),
    ],
)
def test_a_sum_that_is_left(project: Project, source: str, reason: str) -> None:
    project.write("import torch\n" + source)
    assert reason in project.why_left(summed(project.site("item()")))


TABLE = """import numpy as np
import pandas as pd
import torch
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.standard_normal((60, 3)), columns=["a", "b", "c"])
columns = ["a", "b"]
seen = []
"""


def once(site: Site) -> Edit:
    return Edit("no_loader", "convert_once", site, text="all_x = ...  # once, before the loop")


TABLES = {
    "rows": (
        "for step in range(4):\n    rows = rng.permutation(60)[:8]\n"
        "    x = torch.tensor(frame.iloc[rows][columns].values.tolist())  # cut\n    seen.append(x)\n",
        "all_x = torch.tensor(frame[columns].values.tolist())\nfor step in range(4):\n"
        "    rows = rng.permutation(60)[:8]\n"
        "    x = all_x[rows]  # cut\n    seen.append(x)\n",
    ),
    "range": (
        "# train\nfor epoch in range(2):\n    for i in range(0, 60, 8):\n"
        "        x, y = torch.tensor(frame[columns].values[i:i + 8]).float(), torch.tensor(frame.c.values[i:i + 8])\n"
        "        x += 1\n        seen += [x, y]\n",
        "all_x = torch.tensor(frame[columns].values).float()\nall_y = torch.tensor(frame.c.values)\n# train\n"
        "for epoch in range(2):\n    for i in range(0, 60, 8):\n"
        "        x, y = all_x[i:i + 8].clone(), all_y[i:i + 8].clone()\n        x += 1\n        seen += [x, y]\n",
    ),
    "method": (
        "class Runner:\n\tdef run(self, table):\n\t\tfor i in range(5):\n"
        "\t\t\tx = torch.from_numpy(table.iloc[i].values)\n\t\t\tseen.append(x)\nRunner().run(frame)\n",
        "\tdef run(self, table):\n\t\tall_x = torch.from_numpy(table.values)\n\t\tfor i in range(5):\n"
        "\t\t\tx = all_x[i].clone()\n\t\t\tseen.append(x)\nRunner().run(frame)\n",
    ),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_converted_once(project: Project, name: str) -> None:
    pytest.importorskip("pandas")
    import torch

    before, after = TABLES[name]
    project.write(TABLE + before)
    patched = project.text(once(project.site(".values")))
    assert patched.endswith(after)
    originals, ours = run(TABLE + before)["seen"], run(patched)["seen"]
    assert len(originals) == len(ours) > 0
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(originals, ours, strict=True))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("for i in n:\n    x = torch.tensor(t.iloc[i].values)\n    t = t.sample(frac=1)\n", "line 5 may change t"),
        ("for i in n:\n    x = torch.tensor(t.iloc[i].values)\n    t['a'] = 0\n", "line 5 may change t"),
        ("for i in n:\n    x = torch.tensor(t.iloc[i].values)\n    shuffle(t)\n", "line 5 may change t"),
        ("for i in n:\n    x = torch.tensor(t.iloc[i].values)\n    t.drop(0, inplace=True)\n", "line 5 may change t"),
        ("def f():\n    t['a'] = 0\nfor i in n:\n    x = torch.tensor(t.iloc[i].values)\n", "line 4 may change t"),
        ("def get(i):\n    x = torch.tensor(t.iloc[i].values)\n    return x\n", "not in a loop of its function"),
        ("all_x = 1\nfor i in n:\n    x = torch.tensor(t.iloc[i].values)\n", "the name all_x is already used"),
        ("for i in n:\n    x = torch.tensor(u.iloc[i].values)\n", "u is created somewhere else"),
        ("for i in n:\n    x = torch.tensor(f(t).values[i])\n", "does not take a batch"),
    ],
)
def test_a_table_that_is_left(project: Project, source: str, reason: str) -> None:
    project.write("import torch\nt = load()\n" + source)
    assert reason in project.why_left(once(project.site(".values")))


def kept(site: Site, name: str = "kept") -> Edit:
    return Edit("growing_memory", "detached", site, call=name, text="kept.append(loss.item())")


@pytest.mark.parametrize(
    ("source", "after"),
    [
        (
            "kept = []\nfor x in data:\n    loss = (x @ weight).sum()\n    kept.append(loss)\n"
            "said.append(sum(kept[-3:]).item())\n",
            "    kept.append(loss.detach())\nsaid.append(sum(kept[-3:]).item())\n",
        ),
        (
            "kept = 0\nfor x in data:\n    loss = (x @ weight).sum()\n    kept += loss\nsaid.append(float(kept))\n",
            "    kept += loss.detach()\nsaid.append(float(kept))\n",
        ),
    ],
)
def test_what_is_kept_is_detached(project: Project, source: str, after: str) -> None:
    project.write(HEAD + source)
    patched = project.text(kept(project.site("kept.append" if "append(loss)" in source else "+= loss")))
    assert patched.endswith(after)
    assert run(HEAD + source)["said"] == run(patched)["said"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sum(kept).backward()", "uses kept in sum(kept).backward()"),
        ("whole = torch.stack(kept).mean()\nwhole.backward()", "uses whole in whole.backward()"),
        ("for one in kept: one.backward()", "uses one in one.backward()"),
        ("[one.backward() for one in kept]", "may call backward on kept"),
        ("self.kept = kept", "self.kept is used by more than one"),
        ("step(kept)", "uses kept in step()"),
        ("g = torch.autograd.grad(kept[0], weight)", "uses kept in torch.autograd.grad()"),
    ],
)
def test_values_that_backward_may_need_keep_their_graph(project: Project, line: str, reason: str) -> None:
    project.write(f"import torch\nkept = []\nfor x in data:\n    kept.append(loss)\n{line}\n")
    assert reason in project.why_left(kept(project.site("kept.append")))


def test_findings_become_edits() -> None:
    def finding(cause: str, text: str, line: int = 40, **more: Any) -> Finding:
        return Finding(cause, "A title", "evidence", 1.1, "by hand", Site(FILE, line, text, "main"), **more)

    table = "x = torch.tensor(frame.iloc[rows].values)"
    findings = [
        finding("frequent_sync", "total += loss.item()  # sum"),
        finding("frequent_sync", "print(loss.item())"),
        finding("no_loader", table, techniques=["batched_fetch"]),
        finding("no_loader", "x = prepare(rows)", techniques=["batched_fetch"]),
        finding("growing_memory", "losses.append(loss)", 50),
        finding("growing_memory", "x = f(x)", 51),
        finding("frequent_sync", "self.losses.append(loss.item())  # all"),
    ]
    leaks = [Leak("losses", 9, site=findings[4].site)]
    session = made_session(model=made_model("cuda:0"))
    edits = cures(msgspec.structs.replace(session, findings=findings, leaks=leaks))
    kinds = ["running_sum", "by_hand", "convert_once", "by_hand", "detached", "by_hand", "by_hand"]
    assert [edit.kind for edit in edits] == kinds
    assert (edits[0].text, edits[0].argument, edits[4].call) == ("total += loss.detach()", ".double()", "losses")
    assert edits[6].text == "self.losses.append(loss.detach())" and "torch.stack" in edits[6].reason
    # On the CPU, reading a sum does not wait. The loop around the sum takes the time, and the author must change it.
    (by_hand,) = cures(msgspec.structs.replace(made_session(), findings=findings[:1]))
    assert (by_hand.kind, by_hand.text) == ("by_hand", "by hand")


def test_line_endings_and_tabs_stay(project: Project) -> None:
    newline = "\r\n"
    source = (HEAD + SUMS["epoch"][0]).replace("    ", "\t").replace("\n", newline)
    project.write(source)
    site = msgspec.structs.replace(project.site("+= loss"), text="total += loss.item()  # sum")
    variable = Edit("workers", "environment", None, argument="OMP_WAIT_POLICY", text="PASSIVE")
    patched = project.text(summed(site), variable)
    assert patched.count(newline) == source.count(newline) + 5
    assert "\n" not in patched.replace("\r\n", "") and f"{newline}\ttotal = float(total){newline}" in patched
