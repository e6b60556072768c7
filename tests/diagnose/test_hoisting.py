"""A rewritten line runs beside the user's own on a real table, and gives the same values and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from slipstream.diagnose.hoisting import hoisted

KNOWN = [
    "x = torch.tensor(frame.iloc[rows][features].values.tolist())  # <- planted",
    "x = torch.tensor(frame.iloc[i:j][features].values, dtype=torch.float32)",
    "x = torch.tensor(frame[features].iloc[i : i + size].values).float()",
    "x = torch.from_numpy(frame[['a', 'b']].to_numpy()[rows]).to(device)",
    "x = torch.as_tensor(frame.iloc[i:j, 1:].to_numpy(dtype='float32')).to(device, non_blocking=True)",
    "x, y = torch.tensor(frame[features].values[rows]), torch.tensor(frame['a'].values[rows]).long()",
    "x = frame.iloc[rows].values.astype('float32')",
    "x = torch.FloatTensor(np.array(frame.iloc[order[i:j]]['b']))",
]


def names() -> dict[str, Any]:
    table = pd.DataFrame(np.arange(60.0).reshape(20, 3), columns=["a", "b", "c"], index=range(100, 120))
    rows = np.array([3, 17, 0, 3])
    order = np.array([7, 1, 4, 2, 19, 3, 5, 8, 6, 0])
    chosen = {"rows": rows, "i": 4, "j": 9, "size": 5, "order": order}
    return {"frame": table, "features": ["a", "c"], "device": "cpu", "torch": torch, "np": np, **chosen}


@pytest.mark.parametrize("line", KNOWN)
def test_the_rewritten_lines_do_the_same(line: str) -> None:
    bare, ours = names(), names()
    exec(line, bare)
    rewritten = hoisted(line)
    assert rewritten.count("# once, before the loop") == (2 if "y" in bare else 1)
    exec(rewritten, ours)
    for name in ("x", "y"):
        if name in bare:
            assert type(bare[name]) is type(ours[name]) and bare[name].dtype == ours[name].dtype
            assert np.array_equal(np.asarray(bare[name]), np.asarray(ours[name]))


def test_it_reads_as_a_user_would_write_it() -> None:
    assert hoisted(KNOWN[0]).splitlines() == [
        "all_x = torch.tensor(frame[features].values.tolist())  # once, before the loop",
        "x = all_x[rows]",
    ]
    assert hoisted(KNOWN[3]).splitlines()[1] == "x = all_x[rows].to(device)", "the device may have no room for all"


UNKNOWN = [
    "x = torch.tensor(frame.sample(64).values)",
    "x = torch.tensor(frame.loc[rows].values)",
    "x = scaler.transform(frame.iloc[rows])",
    "x = torch.tensor(frame.iloc[rows].values / frame.iloc[rows].values.max())",
    "x = torch.tensor(frame.iloc[rows].fillna(frame.mean()).values)",
    "x = torch.tensor(frame.iloc[rows].iloc[2:4].values)",
    "x = frame.iloc[rows]",
    "x = torch.tensor(frame.iloc[0].values)",
    "x = torch.tensor(frame.values)",
    "x = torch.stack([torch.tensor(frame.iloc[i].values) for i in rows])",
    "batch.x = torch.tensor(frame.iloc[rows].values)",
    "loss = model(torch.tensor(frame.iloc[rows].values))",
    "x += torch.tensor(frame.iloc[rows].values)",
    "for x in frame.iloc[rows].values:",
    "x = torch.tensor(",
    "",
]


@pytest.mark.parametrize("line", UNKNOWN)
def test_other_lines_are_left(line: str) -> None:
    assert hoisted(line) == ""
