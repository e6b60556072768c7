from slipstream.diagnose import causes, diagnose, ranking
from slipstream.records import Finding, Memory, Site
from slipstream.testing.made_sessions import made_session

CAUSES = """no_workers worker_count worker_restart shallow_prefetch pageable_transfer float_transfer slow_decode
slow_read slow_transform slow_collate heavy_handover no_loader frequent_sync frequent_saving frequent_validation
frequent_logging unfused_optimizer tiny_operations grad_in_evaluation growing_memory cpu_threads full_precision
misaligned_shapes slow_layout no_autotune denormals padding_waste worker_memory"""


def test_every_cause_has_its_file():
    assert sorted(causes.catalogue()) == sorted(CAUSES.split())


def test_a_healthy_training_has_no_findings():
    assert diagnose(made_session()).findings == []


def test_a_kept_graph_comes_before_any_speed():
    memory = [Memory(step, step, 2**30, 0, step, step) for step in range(100)]
    found = [finding.cause for finding in diagnose(made_session(input_ms=60, memory=memory)).findings]
    assert found[:2] == ["growing_memory", "no_workers"]


def test_of_two_fixes_for_the_same_place_the_better_is_shown():
    def finding(cause: str, line: int) -> Finding:
        return Finding(cause, "", "", 1.5, "", Site("a.py", line))

    kept = ranking._without_rivals([finding("worker_count", 1), finding("shallow_prefetch", 1)])
    assert [one.cause for one in kept] == ["worker_count"]
    kept = ranking._without_rivals([finding("slow_read", 1), finding("slow_transform", 2)])
    assert len(kept) == 2


def test_a_cause_that_stumbles_leaves_a_sentence(monkeypatch):
    def stumble(session, summary):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(ranking, "catalogue", lambda: {"denormals": stumble})
    session = diagnose(made_session())
    assert any("denormals could not be checked" in note for note in session.diagnosis_notes)
