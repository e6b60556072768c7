"""Synthetic tunings for tests of renderers: verdicts with chosen numbers, in the form that `tune` recorded in older
versions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from slipstream.records import Choice, Numerics, Recipe, Session, Setting, Speed, Tuning, Verdict

BASE_MS = 183.0
BASE_RATE = 175.0


def made_verdict(
    technique: str, decision: str, ratio: float | None = None, setting: Setting = True, **facts: Any
) -> Verdict:
    """Returns a verdict. With a ratio, it has an interval of 3% on either side and sound numerics."""
    verdict = Verdict(technique, setting, "kept", "", recipe=Recipe((Choice(technique, setting),)))
    if ratio is not None:
        verdict = msgspec.structs.replace(
            verdict,
            speed=Speed(ratio, 0.97 * ratio, 1.03 * ratio, 24),
            numerics=Numerics("reordered", True, "gradients off by at most 1e-06"),
            step_ms=BASE_MS / ratio,
            samples_per_s=BASE_RATE * ratio,
            batch_size=32,
            peak_bytes=600_000_000,
        )
    return msgspec.structs.replace(verdict, decision=decision, **facts)


def made_verdicts() -> list[Verdict]:
    redrawn = Numerics("redrawn", True, "the loss stays in the band of other seeds")
    both = Recipe((Choice("workers", 2), Choice("channels_last")))
    return [
        made_verdict("tf32", "not_applicable", reason="no CUDA device"),
        made_verdict("cudnn_benchmark", "not_applicable", reason="no CUDA device"),
        made_verdict("fused_attention", "not_applicable", reason="no attention written by hand was seen"),
        made_verdict("workers", "rejected", 1.42, 1, numerics=redrawn, reason="workers=2 is faster"),
        made_verdict("workers", "kept", 1.51, 2, numerics=redrawn, reason="faster beyond doubt", one_off_s=1.2),
        made_verdict("channels_last", "kept", 1.08, reason="faster beyond doubt", one_off_s=4.0, payback_steps=310),
        made_verdict("mixed_precision", "rejected", 0.08, "bf16", reason="12 times slower: this CPU has no bf16 units"),
        made_verdict("cpu_threads", "unsure", 1.01, 1, reason="not decided when the budget was used up"),
        made_verdict("compile", "failed", setting="default", reason="InductorError: no C++ compiler was found"),
        made_verdict(
            "flush_denormals",
            "rejected",
            1.2,
            numerics=Numerics("reordered", False, "gradients of fc.weight off by 0.4"),
            reason="gradients of fc.weight off by 0.4",
        ),
        made_verdict("workers", "kept", 1.51, 2, kind="cumulative", numerics=redrawn),
        made_verdict("channels_last", "kept", 1.62, kind="cumulative", numerics=redrawn, recipe=both),
        made_verdict("channels_last", "kept", 1.07, kind="left_out", recipe=both.without("channels_last")),
        made_verdict("recipe", "kept", 1.61, kind="total", numerics=redrawn, recipe=both),
    ]


def made_tuning(**facts: Any) -> Tuning:
    """Returns a tuning with two kept techniques, and with verdicts of every other decision."""
    tuning = Tuning(
        base_step_ms=BASE_MS,
        base_samples_per_s=BASE_RATE,
        verdicts=made_verdicts(),
        total=Speed(1.61, 1.56, 1.66, 40),
        recipe=Recipe((Choice("workers", 2), Choice("channels_last"))),
        noise=Speed(1.0, 0.985, 1.016, 60),
        base_batch_size=32,
        base_peak_bytes=412_000_000,
        ceiling_ms=102.0,
        seconds_before=50_400.0,
        seconds_after=32_400.0,
        seconds_spent=288.0,
    )
    return msgspec.structs.replace(tuning, **facts)


def tuned(session: Session, **facts: Any) -> Session:
    """Returns the session of a check with a synthetic tuning added."""
    return msgspec.structs.replace(session, command="tune", tuning=made_tuning(**facts))
