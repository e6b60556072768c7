"""The edits that techniques make from a session: which statement, or the reason why it must be made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.recipe.source_edits import edits_of
from slipstream.records import Choice, Edit, Event, Model, Recipe, Session, Setting, Site, TensorFacts
from slipstream.techniques._core.card import already, no
from slipstream.techniques._core.catalogue import technique
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import (
    LOADER_SITE,
    MODEL_SITE,
    OPTIMIZER_SITE,
    made_environment,
    made_loader,
    made_model,
    made_optimizer,
    made_session,
)
from slipstream.testing.made_techniques import made_technique

IMAGES = TensorFacts("[0][0]", [8, 3, 32, 32], "float32", "cpu", 1)
NET: dict[str, Any] = {"name": "model", "class_module": "train"}


def edits(ident: str, setting: Setting = True, session: Session | None = None) -> list[Edit]:
    return technique(ident).edit(Observation(session or made_session(model=made_model(**NET))), setting)


def with_model(**facts: Any) -> Session:
    return made_session(model=made_model(**NET | facts))


def test_process_switches_are_inserted_at_the_start() -> None:
    for ident, setting, text in [
        ("cpu_threads", 2, "torch.set_num_threads(2)"),
        ("tf32", True, 'torch.set_float32_matmul_precision("high")'),
        ("cudnn_benchmark", True, "torch.backends.cudnn.benchmark = True"),
        ("flush_denormals", True, "torch.set_flush_denormal(True)"),
    ]:
        (edit,) = edits(ident, setting)
        assert (edit.kind, edit.text) == ("start", text)
    site = Site("/train.py", 3, "torch.set_num_threads(16)")
    session = made_session(environment=made_environment(num_threads=16, threads_site=site))
    (edit,) = edits("cpu_threads", 2, session)
    assert (edit.kind, edit.site, edit.argument, edit.observed) == ("argument", site, "int", "16")


def test_compile() -> None:
    (edit,) = edits("compile", "default")
    assert (edit.kind, edit.site, edit.call, edit.text) == ("before", OPTIMIZER_SITE, "AdamW", "{model}.compile()")
    (edit,) = edits("compile", "reduce-overhead")
    assert edit.text == '{model}.compile(mode="reduce-overhead")'
    (edit,) = edits("compile", "default", with_model(class_module="torch.nn.modules.container"))
    assert (edit.kind, edit.site, edit.argument) == ("callee", MODEL_SITE, "torch.compile(model)")
    elsewhere = msgspec.structs.replace(MODEL_SITE, function="train")
    (edit,) = edits("compile", "default", with_model(class_module="torch.nn", site=elsewhere))
    assert (edit.kind, edit.text) == ("by_hand", "compiled = torch.compile(model)")
    (edit,) = edits("compile", "default", with_model(num_parameters=7))
    assert edit.kind == "by_hand" and "does not hold exactly its parameters" in edit.reason


def test_channels_last() -> None:
    turned, images = edits("channels_last", True, with_model(inputs=[IMAGES]))
    assert (turned.kind, turned.text) == ("before", "{model}.to(memory_format=torch.channels_last)")
    assert (images.kind, images.site, images.call, images.argument) == ("input", MODEL_SITE, "model", "0")
    named = msgspec.structs.replace(IMAGES, path="[1]['pixels']")
    assert edits("channels_last", True, with_model(inputs=[named]))[1].argument == "pixels"
    nested = msgspec.structs.replace(IMAGES, path="[0][0]['pixels']")
    assert edits("channels_last", True, with_model(inputs=[nested]))[1].kind == "by_hand"


def test_mixed_precision() -> None:
    (around,) = edits("mixed_precision", "bf16")
    assert (around.kind, around.text) == ("around", 'torch.autocast("cpu", dtype=torch.bfloat16)')
    around, scaler = edits("mixed_precision", "fp16")
    assert (scaler.kind, scaler.argument, scaler.text) == ("scaler", "AdamW", 'torch.amp.GradScaler("cpu")')


@pytest.mark.parametrize("ident", ["compile", "channels_last", "mixed_precision"])
def test_several_models_are_edited_by_hand(ident: str) -> None:
    second: Model = made_model(ident=1, **NET)
    session = msgspec.structs.replace(with_model(inputs=[IMAGES]), models=[made_model(**NET), second])
    assert {edit.kind for edit in edits(ident, "bf16" if ident == "mixed_precision" else True, session)} == {"by_hand"}


def test_every_optimizer_that_can_be_fused_is_edited() -> None:
    session = made_session()
    first = session.optimizers[0]
    kinds = [
        first,
        *(msgspec.structs.replace(first, ident=1, **facts) for facts in ({"class_name": "SGD"}, {"can_fuse": False})),
    ]
    found = edits("fused_optimizer", True, msgspec.structs.replace(session, optimizers=kinds))
    assert [edit.call for edit in found] == ["AdamW", "SGD"]


def test_blocking_copies() -> None:
    """Two copies on one line in each of the observed steps."""
    session = made_session(loader=made_loader(num_workers=2))
    session = msgspec.structs.replace(session, sites=[Site("/train.py", 9, "x, y = x.to(d), y.to(d)")])
    copies = [
        Event("transfer", 0, step.start_ns, step.start_ns + 1, num_bytes=8, blocking=True)
        for step in session.steps
        for _ in range(2)
        if session.blocks[step.block].kind == "watch"
    ]
    session = msgspec.structs.replace(session, events=[*session.events, *copies])
    pinned, waiting = edits("pinned_memory", True, session)
    assert (pinned.site, pinned.argument) == (LOADER_SITE, "pin_memory")
    assert (waiting.call, waiting.argument, waiting.num_calls) == ("to", "non_blocking", 2)


def test_variables_that_a_library_reads_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    last = edits("workers", 1024)[-1]
    assert (last.kind, last.argument, last.text) == ("environment", "OMP_WAIT_POLICY", "PASSIVE")
    kinds = [edit.kind for edit in edits("expandable_segments", True)]
    assert kinds == ["environment", "environment"] and edits("allocator", "keep")[0].kind == "by_hand"


def test_checkpointing_names_the_module_of_the_class() -> None:
    (edit,) = edits("checkpointing", "all")
    assert (edit.kind, edit.argument) == ("checkpoint", "train")
    assert [edit.kind for edit in edits("checkpointing", "half")] == ["by_hand"]
    session = with_model(class_module="torch.nn.modules.container")
    assert [edit.kind for edit in edits("checkpointing", "all", session)] == ["by_hand"]


def test_a_technique_without_effect_is_reported() -> None:
    recipe = Recipe((Choice("fused_optimizer"), Choice("nothing")))
    session = made_session(optimizer=made_optimizer(class_name="LBFGS", can_fuse=False))
    (edit,) = edits_of(session, recipe)
    assert (edit.technique, edit.kind) == ("fused_optimizer", "by_hand") and "LBFGS has no fused" in edit.reason
    assert not edits_of(made_session(optimizer=made_optimizer(fused=True)), recipe), "there already"


def test_the_kind_of_an_answer_decides_whether_it_is_reported() -> None:
    recipe, known = Recipe((Choice("made"),)), {"made": made_technique(answer=no("already, as far as words go"))}
    assert [edit.kind for edit in edits_of(made_session(), recipe, techniques=known)] == ["by_hand"]
    known = {"made": made_technique(answer=already("it is so"))}
    assert not edits_of(made_session(), recipe, techniques=known)
