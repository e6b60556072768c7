"""torch computes with more threads than there are cores, or with fewer threads while cores are idle."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of, gain_without, rehearsal_of, rehearsed_gain, rehearsed_words
from slipstream.diagnose.operator_shares import is_compute_bound, operators_ms, self_ms
from slipstream.diagnose.steps.selection import (
    blocks_of,
    is_on_cpu,
    main_model,
    num_workers,
    usual_batches,
    watched_kinds,
)
from slipstream.numbers import part_of_ms, plural
from slipstream.records import Finding, Rehearsal, Session, Site, Summary

LARGE_MS = 0.1  # A shorter operator gains nothing from a second thread.
SPEED_UP = 0.9  # Efficiency of splitting an operator over threads
ASSUMED_PARALLEL = 0.5  # Share of the time in long operators that is assumed if no step was profiled


def find(session: Session, summary: Summary) -> list[Finding]:
    facts, usable = session.environment.torch, session.environment.num_usable
    if facts is None or not is_on_cpu(session) or not is_compute_bound(summary):
        return []
    rehearsal = rehearsal_of(session, "threads")
    if rehearsal is not None:
        return [_rehearsed(session, summary, facts.num_threads, rehearsal)]
    if facts.num_threads >= usable + 1:
        return [_too_many(session, summary, facts.num_threads)]
    cores = int(min(usable, session.environment.num_cores))
    return _too_few(session, summary, facts.num_threads, cores) if facts.num_threads < cores else []


def _rehearsed(session: Session, summary: Summary, threads: int, rehearsal: Rehearsal) -> Finding:
    usable = plural(session.environment.num_usable, "usable core")
    return Finding(
        cause="cpu_threads",
        title=f"{plural(threads, 'thread')} on {usable}",
        evidence=f"torch computes with {plural(threads, 'thread')} on {usable}; "
        f"with {rehearsal.setting}, {rehearsed_words(rehearsal)}.",
        predicted_gain=rehearsed_gain(summary, rehearsal, _computing_ms(summary), usual_batches(session)),
        change=f"torch.set_num_threads({rehearsal.setting})",
        settings={"num_threads": rehearsal.setting},
        site=_site(session),
        techniques=["cpu_threads"],
    )


def _too_many(session: Session, summary: Summary, threads: int) -> Finding:
    usable = max(1.0, session.environment.num_usable)
    # At every barrier all threads wait for a thread that has no core. The cost depends on the number of barriers. The
    # values are the smallest measured costs.
    crowding = threads / usable
    lost = 0.35 if crowding >= 4 else 0.2 if crowding >= 2 else 0.08
    wanted = max(1, int(usable))
    return Finding(
        cause="cpu_threads",
        title=f"{plural(threads, 'thread')} on {plural(usable, 'core')}",
        evidence=f"torch computes with {plural(threads, 'thread')} on {plural(usable, 'usable core')}; "
        f"forward, backward and optimizer take {part_of_ms(_computing_ms(summary), summary.step_ms)}.",
        predicted_gain=gain_without(summary.step_ms, _computing_ms(summary), lost),
        change=f"torch.set_num_threads({wanted})",
        site=_site(session),
        techniques=["cpu_threads"],
    )


def _too_few(session: Session, summary: Summary, threads: int, cores: int) -> list[Finding]:
    ceilings = summary.ceilings
    if num_workers(session) > 0 and ceilings.input_cpu_ms is not None:
        cores -= round(ceilings.input_cpu_ms / summary.step_ms)  # The workers keep these cores busy.
    used = _cores_used(session, summary)
    if cores <= threads or (used is not None and used < 0.8 * threads):
        return []  # The existing threads are not busy, so more threads would gain nothing.
    parallel = _parallel_share(session)
    now_ms = _computing_ms(summary)
    then_ms = now_ms * (1 - parallel + parallel * threads / (cores * SPEED_UP))
    busy = f", {used:.1f} of them busy while it computes" if used is not None else ""
    return [
        Finding(
            cause="cpu_threads",
            title=f"{plural(threads, 'thread')} for {plural(cores, 'free core')}",
            evidence=f"torch computes with {plural(threads, 'thread')}{busy}, and {plural(cores, 'core')} could; "
            f"forward, backward and optimizer take {part_of_ms(now_ms, summary.step_ms)}.",
            predicted_gain=gain_of(summary.step_ms, summary.step_ms - now_ms + min(now_ms, then_ms)),
            change=f"torch.set_num_threads({cores})",
            site=_site(session),
            techniques=["cpu_threads"],
        )
    ]


def _cores_used(session: Session, summary: Summary) -> float | None:
    """The number of cores that the process kept busy with free data; if not measured, in the watched blocks."""
    ceilings = summary.ceilings
    if ceilings.compute_cpu_ms and ceilings.compute_ms:
        return ceilings.compute_cpu_ms / ceilings.compute_ms
    blocks = [block for block in blocks_of(session, watched_kinds(session)) if block.cpu_ns > 0]
    elapsed_ns = sum(block.end_ns - block.start_ns for block in blocks)
    return sum(block.cpu_ns for block in blocks) / elapsed_ns if elapsed_ns > 0 else None


def _parallel_share(session: Session) -> float:
    """The share of the operators' time that is spent in operators long enough to be split over threads."""
    whole = operators_ms(session)
    if session.anatomy is None or whole <= 0:
        return ASSUMED_PARALLEL
    large = [one for one in session.anatomy.operators if one.count and self_ms(one) / one.count >= LARGE_MS]
    return sum(self_ms(operator) for operator in large) / whole


def _computing_ms(summary: Summary) -> float:
    return sum(summary.phases.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))


def _site(session: Session) -> Site | None:
    facts, model = session.environment.torch, main_model(session)
    return (facts.threads_site if facts else None) or (model.site if model else None)
