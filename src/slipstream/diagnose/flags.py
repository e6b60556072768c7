"""Replaces a finding's change by an option of the script's command line, such as `--num_workers 2`.

An option matches if its name fits the setting and if the training seems to use the value that the parser read.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from slipstream.diagnose.source_hints import statement_on
from slipstream.diagnose.steps.selection import training_loader
from slipstream.records import Finding, Flag, Session

OFF: Final = ("False", "None", "no", "none", "off", "0", "32", "fp32", "float32", "full", "32-true", "")
# The names of options, in lower case and without "_" and "-". A pattern may match a part of a longer name, such as
# dataloader_num_workers.
NAMES: Final[dict[str, str]] = {
    "num_workers": r"(^|(?<!persistent))workers?$|^j$",
    "persistent_workers": r"persistentworkers?$",
    "pin_memory": r"pinmem(ory)?$",
    "prefetch_factor": r"prefetchfactor$",
    "num_threads": r"threads$",
    "bf16": r"^(use|enable)?(bf16|bfloat16)$",
    "fp16": r"^(use|enable)?(fp16|float16|half|amp)$",
    "tf32": r"tf32$",
    "compile": r"^(use|enable|torch)?(torch)?compile(model)?$",
    "fused": r"^(use)?fused(adamw?|optim(izer)?)?$",
    # The next two options have several choices. One of the choices is the setting.
    "precision": r"precision$|dtype$",
    "optim": r"^optim(izer)?$",
    "logging_steps": r"^logging_?steps$|^(log|print)(ging)?(interval|freq|every|steps|everynsteps)$",
    "save_steps": r"^(save|checkpoint|ckpt)(interval|freq|every|steps)$",
    "eval_steps": r"^(eval|val|test)(uation|idation)?(interval|freq|every|steps)$",
}
CHOICES: Final = {"bf16": ("bf16", "bfloat16", "bf16-mixed"), "fp16": ("fp16", "float16", "16-mixed")}
INTERVALS: Final = ("logging_steps", "save_steps", "eval_steps")


def offered(session: Session, finding: Finding) -> Finding:
    """Return the finding with the script's own options as its change.

    The finding is returned unchanged if no option fits its first setting.
    """
    if not session.flags or not finding.settings:
        return finding
    options = {name: _option(session, finding, name, value) for name, value in finding.settings.items()}
    if not next(iter(options.values())):
        return finding
    rest = [f"{name}={finding.settings[name]}" for name, option in options.items() if not option]
    change = " ".join(option for option in options.values() if option) + " on the script's command line"
    return msgspec.structs.replace(finding, change=f"{change}, and {', '.join(rest)} in the source" if rest else change)


def _option(session: Session, finding: Finding, setting: str, value: str) -> str:
    """The option with its value; "" if the script has no fitting option, or several fitting options."""
    found = list(
        dict.fromkeys(text for flag in session.flags if (text := _text(session, finding, setting, value, flag)))
    )
    return found[0] if len(found) == 1 else ""


def _text(session: Session, finding: Finding, setting: str, value: str, flag: Flag) -> str:
    name = re.sub(r"[_-]", "", flag.name).lower()
    if value == "True" and flag.choices:
        return _choice(setting, name, flag)
    if not re.search(NAMES[setting], name) or not _is_in_use(session, finding, setting, flag):
        return ""
    if setting in INTERVALS and not (flag.value.isdecimal() and int(flag.value) < int(value)):
        return ""
    return flag.option if flag.is_switch and value == "True" else f"{flag.option} {value}"


def _choice(setting: str, name: str, flag: Flag) -> str:
    """The option with the choice that switches the setting on: --mixed_precision bf16, --optim adamw_torch_fused."""
    if setting == "fused" and re.search(NAMES["optim"], name):
        wanted: tuple[str, ...] = (f"{flag.value}_fused",)
    elif setting in CHOICES and re.search(NAMES["precision"], name) and flag.value in OFF:
        wanted = CHOICES[setting]
    else:
        return ""
    return next((f"{flag.option} {choice}" for choice in flag.choices if choice in wanted), "")


def _is_in_use(session: Session, finding: Finding, setting: str, flag: Flag) -> bool:
    text = finding.site.text if finding.site is not None else ""
    if setting in INTERVALS:
        statement = statement_on(session, finding.site)
        is_of_trainer = session.trainer is not None and re.sub(r"_", "", setting) == re.sub(r"_", "", flag.name)
        return is_of_trainer or (statement is not None and flag.name in re.findall(r"\w+", statement.guard))
    if re.search(rf"\b{setting}\s*=\s*(\d|True|False|None)", text):
        return False  # The line sets a value of its own.
    return flag.value in _values_in_use(session, setting)


def _values_in_use(session: Session, setting: str) -> tuple[str, ...]:
    loader, facts = training_loader(session), session.environment.torch
    if setting == "num_workers" and loader is not None:
        return (str(loader.num_workers),)
    if setting == "prefetch_factor" and loader is not None:
        return (str(loader.prefetch_factor), "None")
    if setting == "num_threads" and facts is not None:
        return (str(facts.num_threads), *OFF)
    return OFF
