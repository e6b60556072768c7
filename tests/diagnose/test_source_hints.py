from __future__ import annotations

import pytest

from slipstream.diagnose.source_hints import with_argument, with_loader_argument
from slipstream.records import Site
from slipstream.testing.made_sessions import made_loader, made_session


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


def test_a_subclass_of_the_users_gets_the_argument_where_it_calls_the_loaders() -> None:
    """Its own arguments may be others."""
    site = Site("base_data_loader.py", 27, "super().__init__(sampler=self.sampler, **self.init_kwargs)")
    loader = made_loader(class_name="MnistDataLoader", site=site)
    changed = "super().__init__(sampler=self.sampler, **self.init_kwargs, persistent_workers=True)"
    assert with_loader_argument(made_session(), loader, "persistent_workers", "True") == changed
    outside = made_loader(class_name="MnistDataLoader", site=Site("train.py", 9, "loader = MnistDataLoader(data)"))
    assert (
        with_loader_argument(made_session(), outside, "num_workers", "2")
        == "loader = MnistDataLoader(data, num_workers=2)"
    )
