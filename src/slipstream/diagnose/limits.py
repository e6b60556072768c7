"""Sentences about what the machine forbids, said instead of a recommendation that could not work."""

from __future__ import annotations

from slipstream.diagnose.input_path import costs_time, granted_share, input_path
from slipstream.diagnose.normal import is_busy
from slipstream.diagnose.rehearsed import CLEARLY, rehearsal_of, rehearsed_words
from slipstream.diagnose.training import is_on_cpu
from slipstream.diagnose.wording import count
from slipstream.records import Session, Summary

BUSY = "The machine was busy"  # how the note about it begins
LONGER = "Times are longer than on a quiet machine; shares of the step mean more than milliseconds."


def machine_notes(session: Session, summary: Summary) -> list[str]:
    notes: list[str] = []
    path = input_path(session, summary)
    if path is not None and path.loader.num_workers == 0 and costs_time(summary, path):
        usable = session.environment.num_usable
        if usable < 1.5 and path.waits < 0.5:
            notes.append(f"The loader has no workers, but with {usable:g} usable core they would gain nothing here.")
    granted = granted_share(session, summary.ceilings)
    if granted < 0.8:
        notes.append(f"{BUSY}: a computing thread of the script had {granted:.0%} of a core. {LONGER}")
    elif is_busy(session.environment) and is_on_cpu(session):
        # Threads that wait for each other spin: they take their cores' time, and it says nothing about the others.
        load, usable = session.environment.load, session.environment.num_usable
        notes.append(f"{BUSY} when the ride began: a load of {load:.1f} on {usable:g} cores. {LONGER}")
    if any(note.startswith(BUSY) for note in notes) and (threads := _undecided_threads(session)):
        notes.append(threads)
    if session.environment.gpus and is_on_cpu(session):
        notes.append(f"The training runs on the CPU although there is a GPU: {session.environment.gpus[0].name}.")
    return notes


def _undecided_threads(session: Session) -> str:
    """Fewer or more threads than cores, and the race against as many was run while others had the cores."""
    facts, cores, race = session.environment.torch, session.environment.num_cores, rehearsal_of(session, "threads")
    if facts is None or race is None or facts.num_threads == cores or race.low >= CLEARLY:
        return ""
    return (
        f"torch computes with {count(facts.num_threads, 'thread')} on {count(cores, 'core')}. {race.setting} were no "
        f"faster ({rehearsed_words(race)}), but others had the cores meanwhile: check again on a quiet machine."
    )
