"""The table of constants in docs/statistics.md has every constant of the search, with the value of the code."""

import ast
import importlib
import math
import re
from pathlib import Path

import slipstream
from slipstream.tuning.options import TuneOptions

PACKAGE = Path(slipstream.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "statistics.md"
SOURCES = [
    *(PACKAGE / "tuning").glob("*.py"),
    PACKAGE / "verify" / "t_sequence.py",
    PACKAGE / "diagnose" / "foreign_load.py",
]


def documented() -> dict[str, float]:
    rows = re.findall(r"^\| `([\w.]+)` \| (log )?([\d.]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: math.log(float(value)) if log else float(value) for name, log, value in rows}


def in_the_code() -> dict[str, float]:
    """The public constants that these modules define themselves, and the thresholds among the options."""
    options = TuneOptions()
    found: dict[str, float] = {
        "options.TuneOptions.margin": options.margin,
        "options.TuneOptions.alpha": options.alpha,
    }
    for path in SOURCES:
        dotted = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        module = importlib.import_module(f"slipstream.{dotted}")
        for name in assigned(path):
            value = getattr(module, name)
            if re.fullmatch(r"[A-Z][A-Z_]*", name) and isinstance(value, int | float):
                found[f"{dotted.removeprefix('tuning.')}.{name}"] = float(value)
    return found


def assigned(path: Path) -> list[str]:
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    targets = [target for each in statements if isinstance(each, ast.Assign) for target in each.targets]
    targets += [each.target for each in statements if isinstance(each, ast.AnnAssign)]
    names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return [name.id for name in names]


def test_the_table_has_every_constant_with_its_value() -> None:
    assert documented() == in_the_code()
