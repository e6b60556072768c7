from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.records import Choice, Recipe, Session, Verdict
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.journal import Journal, facts_of
from slipstream.tuning.options import TuneOptions

FACTS = {"script": "train.py"}
VERDICT = Verdict("a", True, "kept", "faster and sound")


class Interrupted(SimulatedBackend):
    """Raises KeyboardInterrupt after `timings_left` blocks."""

    timings_left = 60

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
        if self.num_timings == self.timings_left:
            raise KeyboardInterrupt
        return super().run_block(trial, round, num_steps, lead_in)


def test_decisions_are_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "folder" / "journal.jsonl")
    journal = Journal(path, FACTS)
    journal.remember(VERDICT)
    again = Journal(path, FACTS)
    assert again.verdicts == [VERDICT] and again.finished is None
    again.finish(Recipe((Choice("a"),)), [VERDICT, VERDICT])
    last = Journal(path, FACTS)
    assert last.finished is not None and last.finished.recipe == Recipe((Choice("a"),))
    assert last.verdicts == [VERDICT, VERDICT], "as they were then"


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(str(path), FACTS)
    journal.remember(VERDICT)
    journal.remember(VERDICT)
    path.write_bytes(path.read_bytes()[:-20])
    assert Journal(str(path), FACTS).verdicts == [VERDICT]


def test_a_link_is_neither_emptied_nor_appended_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("another file")
    (tmp_path / "journal.jsonl").symlink_to(target)
    journal = Journal(str(tmp_path / "journal.jsonl"), FACTS)
    journal.remember(VERDICT)
    assert target.read_text() == "another file"
    assert Journal(str(tmp_path / "journal.jsonl"), FACTS).verdicts == [VERDICT]

    (tmp_path / "real").mkdir()
    (tmp_path / "journals").symlink_to(tmp_path / "real")
    journal = Journal(str(tmp_path / "journals" / "journal.jsonl"), FACTS)
    assert "is a link" in journal.fault and list((tmp_path / "real").iterdir()) == []


def test_a_journal_of_another_script_or_of_yesterday_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(str(path), FACTS).remember(VERDICT)
    assert Journal(str(path), {"script": "other.py"}).verdicts == []
    Journal(str(path), FACTS).remember(VERDICT)
    lines = path.read_text().splitlines()
    year = lines[0].index('"created":"') + len('"created":"')
    path.write_text("\n".join([lines[0][:year] + "2001" + lines[0][year + 4 :], *lines[1:]]) + "\n")
    assert Journal(str(path), FACTS).verdicts == []


def test_the_facts_change_with_the_script_its_arguments_versions_and_the_options(
    tmp_path: Path, session: Session
) -> None:
    (tmp_path / "train.py").write_text("one")
    (tmp_path / "nets.py").write_text("one")
    models = [msgspec.structs.replace(session.models[0], class_module="nets")]
    here = msgspec.structs.replace(session, cwd=str(tmp_path), models=models)
    facts = facts_of(here, TuneOptions())
    others = [
        facts_of(msgspec.structs.replace(here, script=["train.py", "--epochs", "2"]), TuneOptions()),
        facts_of(here, TuneOptions(allow="reordered")),
        facts_of(
            msgspec.structs.replace(here, environment=msgspec.structs.replace(here.environment, python="3.99")),
            TuneOptions(),
        ),
    ]
    (tmp_path / "train.py").write_text("two")
    others.append(facts_of(here, TuneOptions()))
    (tmp_path / "train.py").write_text("one")
    (tmp_path / "nets.py").write_text("two")
    others.append(facts_of(here, TuneOptions()))
    assert all(other != facts for other in others)
    (tmp_path / "nets.py").write_text("one")
    assert facts_of(here, TuneOptions(budget_s=900.0)) == facts, "a longer budget does not change the facts"


def test_an_interrupted_tuning_is_resumed_and_ends_like_one_that_was_not(
    run: Any, technique: Any, tmp_path: Path, listener: Any
) -> None:
    journal = tmp_path / "journal.jsonl"
    known = {"slow": technique(), "a": technique(), "b": technique(), **{f"u{n}": technique() for n in range(3)}}
    factors = choice_factors(a=0.6, b=0.8, slow=2.0)
    whole = run(SimulatedBackend(factors, num_trials=3), known)
    first = run(Interrupted(factors, num_trials=3), known, journal=str(journal))
    assert first.was_interrupted and journal.exists()
    listener.entered.clear()
    second = run(SimulatedBackend(factors, num_trials=3), known, journal=str(journal))
    assert "slow" not in listener.entered, "decided before"
    assert second.is_complete and second.recipe == whole.recipe
    assert any("Resumed" in note for note in second.notes)
    decisions = {one.technique: one.decision for one in second.verdicts if one.kind == "single"}
    assert decisions == {one.technique: one.decision for one in whole.verdicts if one.kind == "single"}
    assert not journal.exists(), "the tuning is complete, so there is nothing to resume"


@pytest.mark.parametrize("num_timings", [5, 100, 200, 250, 300])
def test_a_tuning_may_be_interrupted_anywhere(run: Any, technique: Any, tmp_path: Path, num_timings: int) -> None:
    known = {"a": technique(settings=(2, 4)), "b": technique(), "u": technique()}
    factors = choice_factors(a=0.6, b=0.8)
    backend = Interrupted(factors, num_trials=3)
    backend.timings_left = num_timings
    run(backend, known, journal=str(tmp_path / "journal.jsonl"))
    tuning = run(SimulatedBackend(factors, num_trials=3), known, journal=str(tmp_path / "journal.jsonl"))
    assert tuning.is_complete and tuning.recipe == Recipe((Choice("a", 2), Choice("b")))
    singles = [one.choice for one in tuning.verdicts if one.kind == "single"]
    assert len(singles) == len(set(singles)), "nothing is reported twice"


def test_the_second_setting_is_raced_after_an_interruption(
    run: Any, technique: Any, tmp_path: Path, listener: Any
) -> None:
    journal = str(tmp_path / "journal.jsonl")
    known = {"w": technique(settings=(8, 2))}
    factors = {8: 1.2, 2: 0.7}

    def factor(recipe: Recipe) -> float:
        return factors.get(int(recipe.setting_of("w") or 0), 1.0)

    class Halting(SimulatedBackend):
        def run_block(self, trial: int, round: int, num_steps: int, lead_in: int) -> Any:
            if any(one.technique == "w" for one in listener.verdicts):
                raise KeyboardInterrupt
            return super().run_block(trial, round, num_steps, lead_in)

    assert run(Halting(factor), known, journal=journal).was_interrupted
    listener.entered.clear()
    assert run(SimulatedBackend(factor), known, journal=journal).recipe == Recipe((Choice("w", 2),))
    assert "w=8" not in listener.entered


def test_a_journal_that_cannot_be_written_is_reported_and_does_not_end_the_tuning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(str(tmp_path / "file" / "journal.jsonl"), FACTS)
    journal.remember(VERDICT)
    assert not journal.is_kept
    assert "No journal could be kept" in journal.fault and "cannot be resumed" in journal.fault


@pytest.mark.parametrize("line", [b'{"type": "\xff"}', b"[" * 200_000], ids=["utf8", "nested"])
def test_a_damaged_line_ends_the_journal(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    Journal(str(path), FACTS).remember(VERDICT)
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert Journal(str(path), FACTS).verdicts == [VERDICT]
