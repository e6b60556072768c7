from slipstream.diagnose.wording import count, ms, size, with_argument, with_loader_argument
from slipstream.records import Site
from slipstream.testing.sessions import made_loader


def site(text: str) -> Site:
    return Site("/a/train.py", 3, text)


def test_numbers():
    assert [ms(x) for x in (0.123, 1.26, 12.6, 126.4)] == ["0.12", "1.3", "13", "126"]
    assert size(12) == "12 B"
    assert size(4_200_000) == "4.2 MB"
    assert count(1, "core") == "1 core"
    assert count(2.5, "core") == "2.5 cores"


def test_an_argument_is_put_into_the_users_line():
    line = site("loader = DataLoader(Photos(root, size=(3, 4)), batch_size=32)")
    assert with_argument(line, "DataLoader", "num_workers", "2") == (
        "loader = DataLoader(Photos(root, size=(3, 4)), batch_size=32, num_workers=2)"
    )


def test_an_argument_that_is_there_is_replaced():
    assert with_argument(site("DataLoader(data, num_workers=1)"), "DataLoader", "num_workers", "4") == (
        "DataLoader(data, num_workers=4)"
    )


def test_a_call_over_several_lines_is_sketched():
    assert with_argument(site("loader = DataLoader("), "DataLoader", "num_workers", "2") == (
        "DataLoader(..., num_workers=2)"
    )
    assert with_argument(None, "AdamW", "fused", "True") == "AdamW(..., fused=True)"


def test_a_framework_has_its_own_name_for_it():
    loader = made_loader(framework="transformers")
    assert with_loader_argument(loader, "num_workers", "2") == "TrainingArguments(..., dataloader_num_workers=2)"
