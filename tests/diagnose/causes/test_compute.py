import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Event, Misalignment, ModuleShare, Rehearsal, Site, TensorFacts
from slipstream.testing.made_sessions import (
    FILE,
    MODEL_SITE,
    OPTIMIZER_SITE,
    made_anatomy,
    made_environment,
    made_model,
    made_optimizer,
    made_session,
    made_stack,
)

MATRICES = made_anatomy({"aten::mm": (12, 24.0), "aten::relu": (6, 2.0)})


def findings(**facts):
    return {finding.cause: finding for finding in diagnose(made_session(**facts)).findings}


@pytest.mark.parametrize(
    ("library", "line", "change"),
    [
        ("transformers", "trainer.train()", "TrainingArguments(..., bf16=True)"),
        ("lightning", "trainer.fit(model)", 'Trainer(..., precision="bf16-mixed")'),
        ("keras", "model.fit(x, y)", 'keras.mixed_precision.set_global_policy("mixed_bfloat16")'),
    ],
)
def test_a_trainer_enters_autocast_itself(library, line, change):
    environment = msgspec.structs.replace(made_environment(has_fast_bf16=True), libraries={library: "5.0"})
    model = made_model(site=msgspec.structs.replace(MODEL_SITE, text=line))
    assert findings(anatomy=MATRICES, environment=environment, model=model)["full_precision"].change == change


def test_an_optimizer_that_loops_over_many_small_tensors():
    optimizer = made_optimizer(num_tensors=480, num_parameters=30_000, foreach=False)
    site = msgspec.structs.replace(OPTIMIZER_SITE, text="optimizer = torch.optim.AdamW(ps, lr=0.001, foreach=False)")
    found = findings(optimizer_ms=20.0, optimizer=msgspec.structs.replace(optimizer, site=site))["unfused_optimizer"]
    assert found.change == "optimizer = torch.optim.AdamW(ps, lr=0.001, fused=True)"
    assert found.site == site
    assert found.predicted_gain == pytest.approx(51 / (51 - 16))


def test_fusing_is_not_recommended_for_an_update_far_longer_than_its_copy():
    """As in Lightning, whose optimizer step does much else: it takes 20 ms, and the copy's 1 ms became 0.5."""
    copy = Rehearsal("fused_optimizer", "", 1.0, 0.5, 2.0, 1.9, 2.1, 41)
    found = findings(optimizer_ms=20.0, optimizer=made_optimizer(), rehearsals=[copy])
    assert "unfused_optimizer" not in found  # at most 1.5 of 51 ms
    slow = msgspec.structs.replace(copy, now_ms=10.0, then_ms=5.0)
    gain = findings(optimizer_ms=20.0, optimizer=made_optimizer(), rehearsals=[slow])[
        "unfused_optimizer"
    ].predicted_gain
    assert gain == pytest.approx(51 / 41)


@pytest.mark.parametrize("facts", [{"fused": True}, {"can_fuse": False}, {"class_name": "SGD"}])
def test_an_optimizer_that_is_fine(facts):
    assert findings(optimizer_ms=4.0, optimizer=made_optimizer(**facts)) == {}


OWN = {
    "class_name": "PlainAdam",
    "can_fuse": False,
    "num_tensors": 480,
    "num_parameters": 400_000,
    "step_site": Site("/home/ada/project/optim.py", 14, "def step(self, closure=None):", "step"),
}


def test_a_custom_optimizer_that_loops_over_many_small_tensors():
    found = findings(optimizer_ms=20.0, optimizer=made_optimizer(**OWN))["unfused_optimizer"]
    assert found.site == OWN["step_site"] and found.techniques == []
    assert found.predicted_gain == pytest.approx(51 / (51 - 14))
    assert "480 tensors" in found.evidence and "42 µs each" in found.evidence
    assert "train.py:33" in found.advice


@pytest.mark.parametrize(
    "facts",
    [
        {"step_site": None},  # a library's class, so no loop of the user's
        {"num_tensors": 2000},  # 10 µs a tensor, so it uses lists already
        {"num_parameters": 400_000_000},  # arithmetic, not calls
    ],
)
def test_an_optimizer_of_ones_own_that_is_fine(facts):
    assert "unfused_optimizer" not in findings(optimizer_ms=20.0, optimizer=made_optimizer(**{**OWN, **facts}))


def test_a_python_loop_of_tiny_operators():
    anatomy = made_anatomy({"aten::mm": (600, 3.0), "aten::tanh": (900, 3.0)})
    stacks = [made_stack("compute", 19, 80, phase="forward", function="forward")]
    found = findings(forward_ms=6, backward_ms=8, anatomy=anatomy, stacks=stacks)["tiny_operations"]
    assert found.site.line == 19
    assert "compile" in found.techniques
    assert found.predicted_gain <= 16 / (16 - 12 * 0.6) * 1.01


@pytest.mark.parametrize(
    ("library", "line", "change"),
    [
        ("", "loss = model(x)", "model = torch.compile(model)"),
        ("keras", "model.fit(x, y)", "model.compile(..., jit_compile=True)"),
        ("transformers", "trainer.train()", "TrainingArguments(..., torch_compile=True)"),
        ("lightning", "trainer.fit(model)", "model = torch.compile(model)"),
    ],
)
def test_a_trainer_compiles_by_its_own_argument(library, line, change):
    """What torch.compile(model) returns passes `fit` on to the model, which then calls itself uncompiled."""
    anatomy = made_anatomy({"aten::mm": (600, 3.0), "aten::tanh": (900, 3.0)})
    environment = msgspec.structs.replace(made_environment(), libraries={library: "3.0"} if library else {})
    model = made_model(site=msgspec.structs.replace(MODEL_SITE, text=line))
    found = findings(forward_ms=6, backward_ms=8, anatomy=anatomy, environment=environment, model=model)
    assert found["tiny_operations"].change.endswith(f", or {change}")


def test_on_a_busy_machine_an_operator_takes_longer_to_launch():
    """The thread had 40% of a core, so operators and step take 2.5 times as long."""
    anatomy = made_anatomy({"aten::mm": (600, 15.0), "aten::tanh": (900, 20.0)})
    times = {"forward_ms": 25, "backward_ms": 35, "anatomy": anatomy}
    assert "tiny_operations" in findings(**times, compute_cpu_ms=0.4 * 61.5)
    assert "tiny_operations" not in findings(**times)


def test_a_loop_in_the_loss_is_named_there():
    """The loop is outside the model, so compiling would not change it, and most of backward belongs to it."""
    anatomy = made_anatomy({"aten::select": (3000, 20.0), "aten::max": (1900, 20.0)})
    stacks = [
        made_stack("compute", 13, 20, phase="forward", function="forward"),
        made_stack("loss", 23, 80, phase="other", function="triplet_loss", expression="same.any()"),
    ]
    found = findings(forward_ms=1, backward_ms=30, other_ms=20, anatomy=anatomy, stacks=stacks)["tiny_operations"]
    assert (found.site.line, found.techniques) == (23, [])
    assert "compile" not in found.change
    assert found.predicted_gain == pytest.approx(52.5 / (52.5 - (20 + 30 * 20 / 21) * 0.9), rel=0.02)


def test_torchs_own_recurrent_layers_loop_in_c():
    """There is no loop of the script's to replace, and compiling does not change them."""
    operators = {"aten::mm": (600, 3.0), "aten::tanh": (900, 3.0), "aten::gru": (1, 1.0)}
    modules = [ModuleShare("gru", "GRU", 6.0, 0, backward_ms=9.0), ModuleShare("head", "Linear", 0.1, 0)]
    anatomy = made_anatomy(operators, modules=modules)
    assert "tiny_operations" not in findings(forward_ms=6, backward_ms=8, anatomy=anatomy)
    del operators["aten::gru"]  # the script's own class with this name
    assert "tiny_operations" in findings(forward_ms=6, backward_ms=8, anatomy=made_anatomy(operators, modules=modules))


def test_a_profiled_step_of_another_kind_gives_no_finding():
    """A rollout in one of 16 updates. Its operators cannot have run in 3 ms."""
    anatomy = made_anatomy({"aten::mm": (5000, 20.0), "aten::tanh": (4000, 20.0)})
    assert "tiny_operations" not in findings(forward_ms=1, backward_ms=1, optimizer_ms=0.5, anatomy=anatomy)


def test_a_small_model_is_not_ill():
    assert (
        findings(
            forward_ms=0.4,
            backward_ms=0.6,
            optimizer_ms=0.05,
            other_ms=0.1,
            input_ms=0.02,
            anatomy=made_anatomy({"aten::addmm": (60, 0.6)}),
        )
        == {}
    )


def test_too_many_threads():
    site = Site(FILE, 9, "torch.set_num_threads(16)")
    found = findings(environment=made_environment(2.0, 16, threads_site=site), anatomy=MATRICES)["cpu_threads"]
    assert (found.site, found.change) == (site, "torch.set_num_threads(2)")
    assert found.predicted_gain > 1.4


def test_too_few_threads():
    found = findings(environment=made_environment(2.0, 1), anatomy=MATRICES, compute_cpu_ms=31)["cpu_threads"]
    assert found.change == "torch.set_num_threads(2)"
    assert 1.3 < found.predicted_gain < 2


def test_threads_for_tiny_operators_or_idle_ones_are_fine():
    tiny = made_anatomy({"aten::mm": (200, 3.0)})
    assert findings(environment=made_environment(2.0, 1), anatomy=tiny, compute_cpu_ms=31) == {}
    assert findings(environment=made_environment(4.0, 2), anatomy=MATRICES, compute_cpu_ms=31) == {}


def test_full_precision_only_where_faster_units_are():
    assert findings(anatomy=MATRICES) == {}
    found = findings(anatomy=MATRICES, environment=made_environment(has_fast_bf16=True))["full_precision"]
    assert "bfloat16" in found.change
    assert findings(anatomy=MATRICES, environment=made_environment(has_fast_bf16=True, autocast_seen=True)) == {}
    assert found.techniques == ["mixed_precision"], "a CPU has no TF32 units"
    cuda = made_environment(8.0, 8, "cuda:0", has_tf32=True)
    tf32 = findings(anatomy=MATRICES, environment=cuda)["full_precision"]
    assert "high" in tf32.change and tf32.techniques == ["tf32"]
    both = made_environment(8.0, 8, "cuda:0", has_tf32=True, has_fast_bf16=True)
    found = findings(anatomy=MATRICES, environment=both)["full_precision"]
    assert found.techniques == ["mixed_precision", "tf32"]


def test_shapes_that_do_not_fit():
    anatomy = msgspec.structs.replace(
        MATRICES, misalignments=[Misalignment("head", "Linear", "out_features", 50257, 50304, 0.6)]
    )
    gpu = made_environment(8.0, 8, "cuda:0", has_fast_fp16=True, autocast_seen=True)
    assert findings(anatomy=anatomy, environment=gpu)["misaligned_shapes"].change == "out_features=50304"
    assert findings(anatomy=anatomy) == {}


def test_convolutions():
    anatomy = made_anatomy({"aten::convolution_backward": (8, 16.0), "aten::mkldnn_convolution": (8, 8.0)})
    convnet = made_model(num_convolutions=8)
    quicker = Rehearsal("channels_last", "", 20.0, 16.0, 1.25, 1.2, 1.3, 9)
    found = findings(anatomy=anatomy, model=convnet, rehearsals=[quicker])["slow_layout"]
    assert found.site == MODEL_SITE
    assert found.change == "model = model.to(memory_format=torch.channels_last)"
    assert found.advice == "The batch as well: x = x.to(memory_format=torch.channels_last)."
    assert 1.03 < found.predicted_gain < 1.25
    unsure = msgspec.structs.replace(quicker, low=0.97)
    assert findings(anatomy=anatomy, model=convnet, rehearsals=[unsure]) == {}
    beside = msgspec.structs.replace(quicker, now_ms=400.0, then_ms=320.0)
    assert findings(anatomy=anatomy, model=convnet, rehearsals=[beside]) == {}, "twenty times the script's own"
    assert findings(anatomy=anatomy, model=convnet) == {}
    gpu = made_environment(8.0, 8, "cuda:0")
    assert set(findings(anatomy=anatomy, model=made_model("cuda:0", num_convolutions=8), environment=gpu)) == {
        "no_autotune"
    }


def test_a_generator_gets_another_layout_and_its_noise_does_not():
    """`to(memory_format=torch.channels_last)` raises an error for a tensor of two dimensions."""
    anatomy = made_anatomy({"aten::convolution_backward": (8, 16.0), "aten::mkldnn_convolution": (8, 8.0)})
    noise = [TensorFacts("[0]", [32, 100], "float32", "cpu", 12800, False)]
    generator = made_model(num_convolutions=3, name="generator", inputs=noise)
    critic = made_model(ident=1, num_convolutions=4, name="self.critic", num_parameters=100)
    session = made_session(anatomy=anatomy, rehearsals=[Rehearsal("channels_last", "", 20.0, 16.0, 1.25, 1.2, 1.3, 9)])
    session = diagnose(msgspec.structs.replace(session, models=[generator, critic]))
    (found,) = [one for one in session.findings if one.cause == "slow_layout"]
    assert found.evidence.startswith("7 convolutions are ")
    assert found.change == "generator = generator.to(memory_format=torch.channels_last)"
    assert found.advice == ""


def test_what_belongs_under_autocast_as_well():
    """Another model, and some losses, raise an error for a result in bf16."""
    environment = made_environment(has_fast_bf16=True)
    called = made_model(site=msgspec.structs.replace(MODEL_SITE, text="outputs = model(images)"))
    alone = findings(anatomy=MATRICES, environment=environment, model=called)["full_precision"]
    assert alone.advice == "Run the loss inside it as well."
    computed = made_model(site=msgspec.structs.replace(MODEL_SITE, text="logits, loss = model(x, y)"))
    assert findings(anatomy=MATRICES, environment=environment, model=computed)["full_precision"].advice == ""
    critic_site = msgspec.structs.replace(MODEL_SITE, line=194)
    models = [
        made_model(),
        made_model(ident=1, num_parameters=100, site=critic_site),
        made_model(ident=2, num_parameters=0, class_name="BCELoss"),
    ]
    session = msgspec.structs.replace(made_session(anatomy=MATRICES, environment=environment), models=models)
    (found,) = [one for one in diagnose(session).findings if one.cause == "full_precision"]
    assert found.advice == "Run the calls of the other models (train.py:194) and the losses inside it as well."
    trainer = msgspec.structs.replace(environment, libraries={"lightning": "2.6"})
    model = made_model(site=msgspec.structs.replace(MODEL_SITE, text="trainer.fit(model)"))
    assert findings(anatomy=MATRICES, environment=trainer, model=model)["full_precision"].advice == ""


def test_denormals():
    found = findings(anatomy=msgspec.structs.replace(MATRICES, denormal_share=0.2))["denormals"]
    assert found.change == "torch.set_flush_denormal(True)"
    assert found.predicted_gain > 2
    assert findings(anatomy=msgspec.structs.replace(MATRICES, denormal_share=1e-5)) == {}
    flushed = made_environment(flush_denormal=True)
    assert findings(anatomy=msgspec.structs.replace(MATRICES, denormal_share=0.2), environment=flushed) == {}


def test_denormals_that_mean_something_are_scaled_and_not_flushed():
    anatomy = msgspec.structs.replace(MATRICES, denormal_share=0.2)
    raced = Rehearsal("flush_denormals", "", 50.0, 20.0, 2.5, 2.2, 2.8, 9, breaks_values=True)
    found = findings(anatomy=anatomy, rehearsals=[raced])["denormals"]
    assert "* 2.0**40" in found.change and found.techniques == [] and "no longer finite" in found.advice
    harmless = msgspec.structs.replace(raced, breaks_values=False)
    assert findings(anatomy=anatomy, rehearsals=[harmless])["denormals"].techniques == ["flush_denormals"]


def test_of_two_optimizers_the_one_that_takes_the_time_is_named():
    """A GAN's generator is larger and steps every fifth time. LBFGS has no fused implementation and does not count."""
    critic = made_optimizer(site=Site(FILE, 114, "optimizer_D = AdamW(net.parameters())"), num_tensors=6)
    generator = msgspec.structs.replace(
        critic,
        ident=1,
        num_tensors=16,
        num_parameters=9_000_000,
        site=Site(FILE, 113, "optimizer_G = AdamW(g.parameters())"),
    )
    other = msgspec.structs.replace(critic, ident=2, class_name="LBFGS", can_fuse=False)
    updates = [Event("optimizer", ident, 0, ns) for ident, ns in ((0, 60), (1, 15), (2, 25))]
    session = made_session(optimizer_ms=20.0)
    session = msgspec.structs.replace(
        session,
        optimizers=[critic, generator, other],
        events=[one for one in session.events if one.kind != "optimizer"] + updates,
    )
    (found,) = [one for one in diagnose(session).findings if one.cause == "unfused_optimizer"]
    assert found.site.line == 114 and found.advice == "Change train.py:113 in the same way."
    assert (
        "The 2 optimizers that could be fused take 15 of" in found.evidence and "with its 6 tensors" in found.evidence
    )
