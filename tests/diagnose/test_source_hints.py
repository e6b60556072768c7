from __future__ import annotations

import pytest

from slipstream.diagnose.source_hints import with_argument
from slipstream.records import Site


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("loader = DataLoader(data)", "loader = DataLoader(data, num_workers=2)"),
        (
            "loader = DataLoader(data, num_workers=0, shuffle=True)",
            "loader = DataLoader(data, num_workers=2, shuffle=True)",
        ),
        ("DataLoader(data, num_workers=int(sys.argv[1]) if x else (0, 1)[0])", "DataLoader(data, num_workers=2)"),
        ("loader = DataLoader(", "DataLoader(..., num_workers=2)"),
        ("loader = make(data)", "DataLoader(..., num_workers=2)"),
    ],
)
def test_an_argument_is_put_into_the_users_own_line(line: str, changed: str) -> None:
    assert with_argument(Site("train.py", 3, line), "DataLoader", "num_workers", "2") == changed
