"""Everything is computed in fp32 on hardware with faster units for lower precision. On a CPU without bf16 units nothing
is reported, because lower precision is many times slower there.
"""

from __future__ import annotations

import re

from slipstream.diagnose.gain import gain_without, rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.operator_shares import compute_phases_ms, is_compute_bound, share_of_class
from slipstream.diagnose.source_hints import joined, place, trainers_own
from slipstream.diagnose.speedtest_context import SOURCE, precision_ratio
from slipstream.diagnose.steps.selection import device_of, is_on_accelerator, is_on_cpu, main_model, usual_batches
from slipstream.numbers import in_ms, in_percent
from slipstream.records import Finding, Model, Session, Site, Summary, TorchFacts

_COMPUTES_LOSS = re.compile(r"loss\w*\b[^=(]*=")  # loss = model(x, y); logits, loss = model(x, y)
_MOST_PLACES = 3  # Number of source lines that one sentence lists
SAVED = {"bf16": 0.5, "fp16": 0.5, "tf32": 0.35}  # Share saved of the time in tensor contractions


def find(session: Session, summary: Summary) -> list[Finding]:
    facts, model = session.environment.torch, main_model(session)
    if facts is None or model is None or facts.autocast_seen or set(model.dtypes) != {"float32"}:
        return []
    unit = _faster_unit(session, facts)
    share = share_of_class(session, "contraction")
    if not unit or share == 0 or not is_compute_bound(summary):
        return []
    computing_ms = compute_phases_ms(summary)
    ratio = precision_ratio(session, unit, device_of(session))
    saved = SAVED[unit] if ratio is None else min(SAVED[unit], max(0.0, 1 - 1 / ratio))
    gain, proof = gain_without(summary.step_ms, computing_ms * share, saved), ""
    rehearsal = rehearsal_of(session, "bf16") if unit == "bf16" else None
    if rehearsal is not None:
        gain = rehearsed_gain(
            summary, rehearsal, computing_ms - summary.phases.get("optimizer", 0.0), usual_batches(session)
        )
        proof = f"; in bf16, {rehearsed_words(rehearsal)}"
    return [
        Finding(
            cause="full_precision",
            title=f"fp32 on hardware with {unit} units",
            evidence=f"Tensor contractions in fp32 are {in_percent(share)} of the {in_ms(computing_ms)} that a step "
            f"computes; {device_of(session)} has {unit} units{proof}.",
            predicted_gain=gain,
            change=_change(session, model.site, unit),
            site=model.site,
            settings={unit: "True"},
            techniques=[*(["mixed_precision"] if unit != "tf32" else []), *(["tf32"] if facts.has_tf32 else [])],
            advice=joined(
                _scope(session, model, unit),
                "fp16 also needs torch.amp.GradScaler." if unit == "fp16" else "",
                f"This machine multiplies {ratio:.1f} times as fast in {unit} as in fp32 {SOURCE}." if ratio else "",
            ),
        )
    ]


def _change(session: Session, site: Site | None, unit: str) -> str:
    if unit == "tf32":
        return 'torch.set_float32_matmul_precision("high")'
    kind = device_of(session).split(":")[0]
    return _trainers_own(session, site, unit) or f"with torch.autocast({kind!r}, dtype=torch.{_dtype(unit)}): ..."


def _trainers_own(session: Session, site: Site | None, unit: str) -> str:
    """The trainer's own argument, because a trainer enters autocast itself; "" without a trainer."""
    return trainers_own(
        session,
        site,
        f'Trainer(..., precision="{unit}-mixed")',
        f"TrainingArguments(..., {unit}=True)",
        keras=f'keras.mixed_precision.set_global_policy("mixed_{_dtype(unit)}")',
    )


def _scope(session: Session, model: Model, unit: str) -> str:
    """A sentence about what else must run under autocast.

    Other models and some losses raise an error outside autocast if they get a result of lower precision.
    """
    if unit == "tf32" or _trainers_own(session, model.site, unit):
        return ""
    others = [one for one in session.models if one.num_parameters and one.ident != model.ident and one.site]
    places = list(dict.fromkeys(place(one.site) for one in others))[:_MOST_PLACES]
    if not others and _COMPUTES_LOSS.search(model.site.text if model.site is not None else ""):
        return ""
    calls = f"the calls of the other models ({', '.join(places)}) and the losses" if others else "the loss"
    sentence = f"Run {calls} inside it as well."
    if is_on_accelerator(session) and any(one.class_name == "BCELoss" for one in session.models):
        sentence += " BCELoss raises an error there: use BCEWithLogitsLoss, without the sigmoid before it."
    return sentence


def _faster_unit(session: Session, facts: TorchFacts) -> str:
    if facts.has_fast_bf16 and (is_on_accelerator(session) or is_on_cpu(session)):
        return "bf16"
    if not is_on_accelerator(session):
        return ""
    if facts.has_fast_fp16:
        return "fp16"
    return "tf32" if facts.has_tf32 and facts.matmul_precision == "highest" else ""


def _dtype(unit: str) -> str:
    return {"bf16": "bfloat16", "fp16": "float16"}[unit]
