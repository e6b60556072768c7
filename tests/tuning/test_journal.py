from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.records import Choice, Edit, Recipe, Session, TrialSpec, Verdict
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.journal import Journal, Selected, facts_of
from slipstream.tuning.options import TuneOptions

FACTS = {"script": "train.py"}
A, B = Recipe((Choice("a"),)), Recipe((Choice("b"),))
SELECTED = Selected(A, 0.3, [Verdict("a", True, "kept", cause="gains")], writable=B, writable_gain=0.2)


def _resumed(path: Path | str, facts: dict[str, str] = FACTS) -> Journal:
    return Journal(str(path), facts, is_resumed=True)


def test_passes_and_pairs_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    journal = Journal(str(path), FACTS)
    journal.remember_pass(Selected(B, 0.1))
    journal.remember_pass(SELECTED)
    assert journal.begin_proof(A) == (1, [])
    journal.remember_pair(A, 0.25)
    assert journal.begin_proof(B) == (2, [])
    journal.remember_pair(A, 0.35)
    again = _resumed(path)
    assert again.selected == SELECTED, "the last pass"
    assert again.begin_proof(A) == (1, [0.25, 0.35]) and again.begin_proof(B) == (2, [])
    assert again.begin_proof(Recipe()) == (3, []), "a further proof needs more evidence, in whatever run it is"


def test_without_resume_a_journal_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(str(path), FACTS).remember_pass(SELECTED)
    assert Journal(str(path), FACTS).selected is None
    assert _resumed(path).selected is None, "it is empty now"


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(str(path), FACTS)
    journal.remember_pass(SELECTED)
    journal.remember_pair(A, 0.3)
    path.write_bytes(path.read_bytes()[:-20])
    assert _resumed(path).selected == SELECTED and _resumed(path).begin_proof(A) == (1, [])


@pytest.mark.parametrize(
    "line", [b'{"type": "\xff"}', b"[" * 200_000, b'{"type":"verdict"}'], ids=["utf8", "nested", "old"]
)
def test_a_line_that_cannot_be_read_ends_the_journal(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    Journal(str(path), FACTS).remember_pass(SELECTED)
    path.write_bytes(path.read_bytes() + line + b"\n")
    journal = _resumed(path)
    assert journal.selected == SELECTED
    journal.begin_proof(A)
    journal.remember_pair(A, 0.3)
    assert _resumed(path).begin_proof(A) == (1, [0.3]), "what is appended after it is found again"


def test_a_link_is_neither_emptied_nor_appended_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("another file")
    (tmp_path / "journal.jsonl").symlink_to(target)
    Journal(str(tmp_path / "journal.jsonl"), FACTS).remember_pass(SELECTED)
    assert target.read_text() == "another file"
    assert _resumed(tmp_path / "journal.jsonl").selected == SELECTED

    (tmp_path / "real").mkdir()
    (tmp_path / "journals").symlink_to(tmp_path / "real")
    journal = Journal(str(tmp_path / "journals" / "journal.jsonl"), FACTS)
    assert "is a link" in journal.fault and list((tmp_path / "real").iterdir()) == []


def test_a_journal_of_another_script_or_of_long_ago_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(str(path), FACTS).remember_pass(SELECTED)
    assert _resumed(path, {"script": "other.py"}).selected is None
    Journal(str(path), FACTS).remember_pass(SELECTED)
    lines = path.read_text().splitlines()
    year = lines[0].index('"created":"') + len('"created":"')
    path.write_text("\n".join([lines[0][:year] + "2001" + lines[0][year + 4 :], *lines[1:]]) + "\n")
    assert _resumed(path).selected is None


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
        facts_of(here, TuneOptions(is_patchable=True)),
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
    assert facts_of(here, TuneOptions(budget_s=900.0, is_resumed=True)) == facts, "the time may differ"


def test_a_journal_that_cannot_be_written_is_reported_and_does_not_end_the_tuning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(str(tmp_path / "file" / "journal.jsonl"), FACTS)
    journal.remember_pass(SELECTED)
    assert not journal.is_kept
    assert "No journal could be kept" in journal.fault and "cannot be resumed" in journal.fault


# --- whole tunings ----------------------------------------------------------------------------------------------------


class Interrupted(SimulatedBackend):
    """Raises KeyboardInterrupt after `timings_left` blocks, or when the given number of cold trials have started."""

    timings_left = -1
    cold_left = -1

    def run_block(self, *of_block: Any, **how: Any) -> Any:
        if self.num_timings == self.timings_left:
            raise KeyboardInterrupt
        return super().run_block(*of_block, **how)

    def enter(self, spec: TrialSpec) -> Any:
        if spec.is_cold and sum(one.is_cold for one in self.specs) == self.cold_left:
            raise KeyboardInterrupt
        return super().enter(spec)


def _known(technique: Any) -> dict[str, Any]:
    return {"a": technique(settings=(2, 4)), "b": technique(), "u": technique()}


FACTORS = choice_factors(a=0.6, b=0.8)


def test_a_tuning_interrupted_in_its_proof_continues_there(
    run: Any, technique: Any, tmp_path: Path, listener: Any, verdict_of: Any
) -> None:
    journal = str(tmp_path / "journal.jsonl")
    first_backend = Interrupted(FACTORS)
    first_backend.cold_left = 6
    first = run(first_backend, _known(technique), journal=journal)
    assert first.was_interrupted and first.candidate.choices and first.candidate_speed.num_rounds == 3
    backend = SimulatedBackend(FACTORS)
    listener.entered.clear()
    second = run(backend, _known(technique), journal=journal, is_resumed=True)
    assert second.is_complete and set(second.recipe.choices) == {Choice("a", 2), Choice("b")}
    assert second.total.num_rounds == 4 and sum(spec.is_cold for spec in backend.specs) == 2
    assert "u" not in listener.entered, "the selection is used"
    assert verdict_of(second, "u").cause == "no_gain", "its verdicts are reported"
    assert not Path(journal).exists(), "the tuning is complete, so there is nothing to resume"


@pytest.mark.parametrize("timings_left", [2, 30, 60, 90, 120, 150])
def test_a_tuning_may_be_interrupted_anywhere(run: Any, technique: Any, tmp_path: Path, timings_left: int) -> None:
    journal = str(tmp_path / "journal.jsonl")
    backend = Interrupted(FACTORS)
    backend.timings_left = timings_left
    assert run(backend, _known(technique), journal=journal).was_interrupted
    tuning = run(SimulatedBackend(FACTORS), _known(technique), journal=journal, is_resumed=True)
    assert tuning.is_complete
    assert tuning.recipe.setting_of("a") and tuning.recipe.setting_of("b")
    singles = [one.choice for one in tuning.verdicts if one.kind == "single"]
    assert len(singles) == len(set(singles)), "nothing is reported twice"


def test_an_unsure_end_is_continued(run: Any, technique: Any, tmp_path: Path) -> None:
    """Too few pairs fitted into the budget. The next call adds its own."""
    journal = str(tmp_path / "journal.jsonl")
    known = {"a": technique()}

    def backend() -> SimulatedBackend:
        return SimulatedBackend(choice_factors(a=0.5), cold_start_s=lambda recipe: 30.0)

    first = run(backend(), known, journal=journal, budget_s=150.0)
    assert not first.recipe.choices and first.candidate == A and Path(journal).exists()
    num_pairs = first.candidate_speed.num_rounds
    second = run(backend(), known, journal=journal, is_resumed=True)
    assert second.recipe == A and second.total.num_rounds == 4 > num_pairs > 0
    assert not Path(journal).exists()


def test_the_budget_of_a_continued_proof_follows_from_what_is_left(
    run: Any, technique: Any, tmp_path: Path, listener: Any
) -> None:
    journal = str(tmp_path / "journal.jsonl")
    backend = Interrupted(FACTORS, startup_s=lambda recipe: 20.0)
    backend.cold_left = 2
    run(backend, _known(technique), journal=journal)
    resumed = SimulatedBackend(FACTORS, startup_s=lambda recipe: 20.0)
    assert run(resumed, _known(technique), journal=journal, is_resumed=True).recipe.choices
    assert sum(note.startswith("This takes up to") for note in listener.notes) == 2


def test_after_a_change_of_the_script_resume_begins_anew(
    run: Any, technique: Any, tmp_path: Path, listener: Any, session: Session
) -> None:
    journal = str(tmp_path / "journal.jsonl")
    backend = Interrupted(FACTORS)
    backend.cold_left = 4
    run(backend, _known(technique), journal=journal)
    listener.entered.clear()
    other = msgspec.structs.replace(session, script=["train.py", "--epochs", "2"])
    tuning = run(SimulatedBackend(FACTORS), _known(technique), other, journal=journal, is_resumed=True)
    assert "u" in listener.entered and tuning.is_complete
    assert any("the tuning starts anew" in note for note in tuning.notes)


def test_a_resumed_tuning_that_cannot_go_on_still_names_its_candidate(run: Any, technique: Any, tmp_path: Path) -> None:
    journal = str(tmp_path / "journal.jsonl")
    backend = Interrupted(FACTORS)
    backend.cold_left = 4
    run(backend, _known(technique), journal=journal)
    busy = SimulatedBackend(FACTORS, load=lambda now_s: 2.0)
    tuning = run(busy, _known(technique), journal=journal, is_resumed=True)
    assert not tuning.is_complete and set(tuning.candidate.choices) == {Choice("a", 2), Choice("b")}
    assert any("other programs used" in note for note in tuning.notes) and Path(journal).exists()


def test_the_writable_recipe_survives_an_interruption(run: Any, technique: Any, tmp_path: Path) -> None:
    written = technique(claims=("the loader",))
    written.edit = lambda observation, setting: [Edit("workers", "argument", None)]
    known = {"threads": technique(claims=("the loader",)), "workers": written}
    journal = str(tmp_path / "journal.jsonl")
    backend = Interrupted(choice_factors(threads=0.5, workers=0.6))
    backend.cold_left = 2
    run(backend, known, journal=journal)
    tuning = run(SimulatedBackend(choice_factors(threads=0.5, workers=0.6)), known, journal=journal, is_resumed=True)
    assert tuning.writable == Recipe((Choice("workers"),)) and tuning.writable_speed.ratio > 1.6
