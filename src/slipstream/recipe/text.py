"""The text of slipstream.toml, and the line numbers of its keys.

`recipe_text` writes one line for each technique, with the evidence in a comment.

`TomlLines` finds the line of a key, which TOML parsers do not report. It handles files that slipstream wrote and users
edited. It does not handle all of TOML. For a key that it does not find, it returns None.
"""

from __future__ import annotations

import json
import re
import shlex

from slipstream.numbers import in_binary, times
from slipstream.recipe.script_digest import script_digest
from slipstream.records import Choice, Session, Setting, Tuning, Verdict
from slipstream.report.text.tune import worths
from slipstream.report.text.verdicts import reason_of
from slipstream.version import VERSION


def recipe_text(tuning: Tuning, session: Session, format_version: int) -> str:
    parts = [
        _head(session),
        f"version = {format_version}\n",
        _recipe(tuning),
        _table("script", _known(command=session.script, sha256=script_digest(session.script, session.cwd))),
        _table("machine", machine_facts(session)),
        _evidence(tuning, session),
    ]
    return "\n".join(parts)


def _head(session: Session) -> str:
    purpose = "faster" if session.fitting is None else f"fit in its memory, {in_binary(session.fitting.limit_bytes)}"
    run = f"slipstream run {shlex.join(session.script)}"
    return (
        f"# What makes this training {purpose}, as measured on {session.created[:10]}. Train with it:\n"
        f"#     {run if chr(10) not in run else 'slipstream run'}\n"
        "# Take a line out, or set it to false, to train without that technique. `slipstream techniques` lists them.\n"
    )


def _recipe(tuning: Tuning) -> str:
    lines = [
        (f"{choice.technique} = {_value(choice.setting)}", _proof(tuning, choice)) for choice in tuning.recipe.choices
    ]
    width = max((len(line) for line, _ in lines), default=0)
    body = "".join(f"{line:<{width}}  # {proof}\n" if proof else f"{line}\n" for line, proof in lines)
    return "[recipe]\n" + (body or "# No technique was proved to be faster.\n")


def _proof(tuning: Tuning, choice: Choice) -> str:
    """Returns the evidence for one technique, as in "about 1.62x, identical".

    For older sessions the evidence is an interval. If the race of the technique gave no interval, the evidence is the
    technique's share of the recipe's gain.
    """
    verdict = _evidence_of(tuning, choice)
    if verdict is None or verdict.speed is None:
        return ""
    if verdict.own_ratio is not None:
        return f"{reason_of(verdict)}{', ' + verdict.numerics.claimed if verdict.numerics is not None else ''}"
    alone = "" if verdict.kind == "single" else " with the lines above"
    numerics = f", {verdict.numerics.claimed}" if verdict.numerics is not None else ""
    if not verdict.speed.is_bounded and (worth := dict(worths(tuning)).get(str(choice))):
        return f"{worth}{numerics}"
    return f"{times(verdict.speed)}{alone}{numerics}"


def _evidence_of(tuning: Tuning, choice: Choice) -> Verdict | None:
    for kind in ("single", "cumulative"):
        for verdict in tuning.verdicts:
            if verdict.kind == kind and verdict.choice == choice and verdict.decision == "kept":
                return verdict
    return None


def machine_facts(session: Session) -> dict[str, object]:
    """Returns the facts by which `run` recognises the machine without importing torch."""
    environment = session.environment
    return _known(
        cpu=environment.cpu,
        cores=round(environment.num_usable, 2),
        gpus=", ".join(gpu.name for gpu in environment.gpus),
        system=environment.system,
        python=environment.python,
        torch=environment.torch.version if environment.torch else "",
    )


def _evidence(tuning: Tuning, session: Session) -> str:
    facts: dict[str, object] = {"date": session.created, "slipstream": VERSION}
    total = tuning.total
    facts |= {"ratio": round(total.ratio, 4)} if total is not None else {}
    if total is not None and total.is_bounded:  # without enough evidence, low and high are placeholders
        facts |= {"low": round(total.low, 4), "high": round(total.high, 4)}
    facts |= {
        "base_step_ms": round(tuning.base_step_ms, 4),
        "base_samples_per_s": round(tuning.base_samples_per_s, 2),
    }
    if tuning.noise is not None:
        facts |= {"noise_low": round(tuning.noise.low, 4), "noise_high": round(tuning.noise.high, 4)}
    interval = ", 95% interval" if total is not None and total.is_bounded else ""
    comment = (
        f"# The whole recipe, against the script as it is: {times(total)}{interval}.\n" if total is not None else ""
    )
    return comment + _table("evidence", facts)


def _known(**facts: object) -> dict[str, object]:
    return {key: value for key, value in facts.items() if value}


def _table(name: str, facts: dict[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in facts.items())


def _value(value: Setting | object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value)}]"
    # A JSON string is also a TOML string, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[=.]""")


class TomlLines:
    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, str], int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header = _TABLE.match(line)
            if header:
                table = header[1].strip("\"'")
                self._lines.setdefault(("", table), number)
                continue
            key = _KEY.match(line)
            if key:
                self._lines.setdefault((table, key[1] or key[2] or key[3]), number)

    def line_of(self, table: str, key: str) -> int | None:
        """Returns the line of a key. `table` is "" for keys before the first table, and for the tables themselves."""
        return self._lines.get((table, key))
