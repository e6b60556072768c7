import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.causes import growing_memory
from slipstream.records import Evaluation, Event, Leak, Memory, Site, Statement, Trainer
from slipstream.report.text.check import evaluation
from slipstream.testing.made_sessions import FILE, FIRST_NS, made_loader, made_optimizer, made_session, made_stack


def ranked(session):
    return diagnose(session).findings


def other(stage, line, count, expression="call(...)", **facts):
    return made_stack(stage, line, count, phase="other", function="<module>", expression=expression, **facts)


def test_data_prepared_in_the_loop():
    stacks = [
        other("transform", 26, 50, "frame.iloc[rows]", leaf="pandas/core/indexing.py:_getitem"),
        other("compute", 26, 30, "torch.tensor(frame.iloc[rows][features].values.tolist())"),
        other("compute", 28, 20, "mse_loss(model(x).squeeze(1), y)"),
    ]
    first = ranked(made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks))[0]
    assert (first.cause, first.site.line) == ("no_loader", 26)
    assert first.predicted_gain <= 71 / (71 - 40 * 0.8)
    assert "data[rows]" in first.change and "Dataset" in first.advice


def test_a_table_cut_in_the_loop_gets_its_own_lines_back_rewritten():
    line = "x = torch.tensor(frame.iloc[rows][features].values).float()"
    stacks = [other("transform", 26, 80, "frame.iloc[rows]"), other("compute", 28, 20, "model(x)")]
    session = made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks)
    session = msgspec.structs.replace(session, sites=[*session.sites, Site(FILE, 26, line, "<module>")])
    known = Statement(FILE, 26, is_whole=True, is_in_loop=True)
    changing = msgspec.structs.replace(known, changing=["frame"])  # frame = frame.sample(frac=1)
    for statements in ([], [changing], [msgspec.structs.replace(known, is_in_loop=False)]):
        assert "once before the loop" in ranked(msgspec.structs.replace(session, statements=statements))[0].change
    first = ranked(msgspec.structs.replace(session, statements=[known]))[0]
    assert first.change.splitlines() == [
        "all_x = torch.tensor(frame[features].values).float()  # once, before the loop",
        "x = all_x[rows]",
    ]
    assert "perm[i:j]" in first.advice


def test_a_loss_in_the_loop_is_not_data():
    stacks = [other("compute", 28, 200, "mse_loss(model(x).squeeze(1), y)")]
    assert ranked(made_session(has_loader=False, input_ms=0, other_ms=20, stacks=stacks)) == []


def test_an_environment_gives_a_note_and_no_finding():
    """The environment depends on the model's actions, so nothing can be converted once or prepared by workers."""
    stacks = [
        other("other", 26, 50, "envs.step(actions)", leaf="classic_control/cartpole.py:step"),
        other("compute", 28, 20, "mse_loss(model(x).squeeze(1), y)"),
    ]
    diagnosis = diagnose(made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks))
    assert diagnosis.findings == []
    (note,) = [note for note in diagnosis.diagnosis_notes if "environment" in note]
    assert note.startswith("The environment takes 29 of 71 ms a step (envs.step(actions), line 26).")
    few = diagnose(made_session(has_loader=False, input_ms=0, other_ms=4, stacks=stacks))
    assert not any("environment" in note for note in few.diagnosis_notes)


def test_a_little_on_each_of_many_lines_is_no_line_to_change():
    stacks = [other("python", line, 4, "x = f(x)") for line in range(20, 45)]
    assert ranked(made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks)) == []


def test_weights_updated_by_hand_are_not_data():
    stacks = [
        other("update", 26, 60, "mhat / (torch.sqrt(vhat) + eps)"),
        other("update", 27, 30, "p.copy_(p - lr * update)"),
        other("compute", 28, 10, "model(x)"),
    ]
    (found,) = ranked(made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks))
    assert (found.cause, found.site.line) == ("unfused_optimizer", 26)
    assert 1.2 < found.predicted_gain <= 71 / (71 - 36 * 0.6) * 1.01
    assert "36 of 71 ms" in found.evidence


def test_a_loss_of_many_calls_is_not_data_but_a_batch_fetched_before_backward_is():
    def causes(function, expression):
        stacks = [made_stack("loss", 26, 90, phase="other", function=function, expression=expression)]
        return [one.cause for one in ranked(made_session(has_loader=False, input_ms=0, other_ms=40, stacks=stacks))]

    assert causes("triplet_loss", "same.any()") == []
    assert causes("batch_loss", "same.any()") == []
    assert causes("get_batch", "data[i : i + 64]") == ["no_loader"]
    assert causes("<module>", "torch.from_numpy(rows)") == ["no_loader"]


def test_values_read_one_by_one_on_the_cpu():
    stacks = [
        other("sync", 12, 70, "zip(preds, labels)"),
        other("sync", 13, 20, "t.item()"),
        other("compute", 30, 10, "optimizer.step()"),
    ]
    first = ranked(made_session(other_ms=10, stacks=stacks))[0]
    assert (first.cause, first.site.line) == ("frequent_sync", 12)
    assert first.predicted_gain == pytest.approx(42 / (42 - 9 * 0.9), rel=0.01)


def test_a_metric_in_numpy_is_read_out_of_tensors_and_not_data():
    line = "f1_score(y.numpy(), scores.detach().numpy())"
    stacks = [other("other", 31, 80, line, leaf="metrics/_classification.py:f1_score")]
    for has_loader in (True, False):
        (found,) = ranked(made_session(has_loader=has_loader, input_ms=0, other_ms=10, stacks=stacks))
        assert (found.cause, found.site.line) == ("frequent_sync", 31)


def test_what_is_read_now_and_then_or_made_into_a_tensor_is_no_reading():
    few = [other("sync", 12, 70, "loss.item()")]
    assert ranked(made_session(other_ms=1.0, stacks=few)) == []
    back = [other("other", 12, 70, "torch.tensor(mask.numpy())")]
    assert ranked(made_session(other_ms=10.0, stacks=back)) == []


def test_what_is_read_for_a_log_is_the_logs():
    line = "np.histogram(p.grad.numpy().ravel(), bins=64)"
    (found,) = ranked(made_session(other_ms=10.0, stacks=[other("sync", 20, 70, line)]))
    assert found.cause == "frequent_logging"


def test_gradients_are_read_by_one_call_for_all():
    line = "{n: p.grad.norm().item() for n, p in model.named_parameters()}"
    (found,) = ranked(made_session(other_ms=10.0, stacks=[other("sync", 14, 70, line)]))
    assert "_foreach_norm" in found.change


def test_with_a_loader_it_is_not_no_loader():
    stacks = [other("transform", 26, 100)]
    assert "no_loader" not in [one.cause for one in ranked(made_session(other_ms=40, stacks=stacks))]


def test_logging_counts_the_whole_line():
    stacks = [
        other("logging", 40, 10, "print(json.dumps(weights))"),
        other("other", 40, 60, "json.dumps(weights)", leaf="json/encoder.py:iterencode"),
        other("compute", 41, 30, "loss_of(x)"),
    ]
    first = ranked(made_session(other_ms=30, stacks=stacks))[0]
    assert (first.cause, first.site.line) == ("frequent_logging", 40)
    assert first.predicted_gain == pytest.approx(61.5 / (61.5 - 0.95 * 21))


def test_histograms_of_weights_are_made_for_people():
    """A tracker of the user's own, whose counting costs more than its writing."""
    stacks = [
        other("other", 32, 60, "np.histogram(values, bins=64)", leaf="lib/_histograms_impl.py:histogram"),
        other("logging", 26, 20, "json.dump(record, self.histograms)", leaf="json/encoder.py:floatstr"),
        other("compute", 41, 20, "loss_of(x)"),
    ]
    first = ranked(made_session(other_ms=30, stacks=stacks))[0]
    assert (first.cause, first.site.line) == ("frequent_logging", 32)
    assert first.predicted_gain == pytest.approx(61.5 / (61.5 - 0.95 * 24))


def test_metrics_of_every_batch_are_for_people_too():
    stacks = [
        other("metrics", 28, 60, "results.append(metric(", leaf="narwhals/_utils.py:_hasattr_static"),
        other("other", 28, 20, "results.append(metric(", leaf="numpy/_aliases.py:asarray"),
        other("compute", 41, 20, "loss_of(x)"),
    ]
    first = ranked(made_session(other_ms=30, stacks=stacks))[0]
    assert (first.cause, first.site.line) == ("frequent_logging", 28)
    assert first.title == "Metrics are computed in every step" and first.evidence.startswith("Metrics take 24")
    assert first.change.startswith("every 20 steps, not each: by hand: ")


def test_logging_in_a_few_long_steps_is_reported_for_the_average_step():
    """Samples are spread over all of the time. The lines of the usual step are unknown if other steps take most of
    it.
    """
    session = made_session(other_ms=0.5, stacks=[other("logging", 40, 90, "print(loss)"), other("compute", 41, 10)])
    steps = [
        msgspec.structs.replace(one, step_ms=one.step_ms + 1600, phases={**one.phases, "other": 1600.5})
        if one.index % 16 == 15
        else one
        for one in session.steps
    ]
    first = ranked(msgspec.structs.replace(session, steps=steps))[0]
    assert first.cause == "frequent_logging"
    assert "ms a step on average" in first.evidence and " of 32 ms" not in first.evidence
    assert 2 < first.predicted_gain < 4.5
    # The script has its interval already.
    assert first.title == "Logging makes some steps long" and "every" not in first.change and "%" not in first.change


def test_a_figure_in_a_few_steps_is_not_what_the_usual_step_does():
    """The step is hardly longer on average, but its other phase is."""
    session = made_session(other_ms=6.0, stacks=[other("logging", 40, 90, "plt.savefig("), other("sync", 41, 10)])
    steps = [
        msgspec.structs.replace(one, step_ms=one.step_ms + 120, phases={**one.phases, "other": 126.0})
        if one.index % 16 == 15
        else one
        for one in session.steps
    ]
    (found,) = [one for one in ranked(msgspec.structs.replace(session, steps=steps)) if one.cause == "frequent_logging"]
    assert found.title == "Logging makes some steps long" and "a step on average" in found.evidence


FIT = "trainer.fit(model, data)"


def test_a_trainer_that_logs_now_and_then_is_no_line_that_logs():
    """Its whole loop runs below the one line of the user's that starts it."""
    stacks = [other("other", 44, 90, FIT), other("logging", 44, 10, FIT, leaf="logging/__init__.py:debug")]
    assert "frequent_logging" not in [one.cause for one in ranked(made_session(other_ms=3, stacks=stacks))]
    stacks = [other("other", 44, 10, FIT), other("logging", 44, 90, FIT, leaf="tqdm/std.py:update")]
    session = made_session(other_ms=30, stacks=stacks)
    environment = msgspec.structs.replace(session.environment, libraries={"lightning": "2.6"})
    first = ranked(msgspec.structs.replace(session, environment=environment))[0]
    assert first.cause == "frequent_logging" and "log_every_n_steps" in first.change


def test_rare_prints_are_fine():
    stacks = [other("logging", 40, 2, "print(loss)"), other("compute", 41, 98)]
    assert ranked(made_session(other_ms=2, stacks=stacks)) == []


def saving_session(every, saving_ms):
    session = made_session(other_ms=saving_ms if every == 1 else 0.5)
    site = Site(FILE, 50, "torch.save(model.state_dict(), path)", "main")
    events = [
        Event("saving", len(session.sites), step.end_ns - int(saving_ms * 1e6), step.end_ns)
        for step in session.steps
        if step.index % every == 0
    ]
    steps = [msgspec.structs.replace(step, saving_ms=saving_ms) if every == 1 else step for step in session.steps]
    return msgspec.structs.replace(
        session, events=[*session.events, *events], sites=[*session.sites, site], steps=steps
    )


def test_saving_at_every_step():
    first = ranked(saving_session(1, 20.0))[0]
    assert (first.cause, first.site.line) == ("frequent_saving", 50)
    assert 1.4 < first.predicted_gain <= 51.5 / 31.5


def test_steps_that_stall_behind_a_save_do_not_hide_it():
    """A save keeps the disk busy: one step in five takes 300 ms, and the plain step still takes 32."""
    session = saving_session(1, 20.0)
    stalled = [msgspec.structs.replace(step, step_ms=300.0) if step.index % 5 == 1 else step for step in session.steps]
    first = ranked(msgspec.structs.replace(session, steps=stalled))[0]
    assert first.cause == "frequent_saving"
    assert 1.4 < first.predicted_gain <= 51.5 / 31.5


def test_saving_now_and_then_is_fine():
    assert ranked(saving_session(40, 10.0)) == []


def evaluated(ms, every, **facts):
    site, caller = (
        Site(FILE, 60, "correct += model(x)", "validate"),
        Site(FILE, 70, "validate(model, held_out)", "main"),
    )
    made = [
        Evaluation(FIRST_NS, FIRST_NS + int(ms * 1e6), 9, 90, ms * 0.9, ms * 0.1, False, after, 1, site, caller)
        for after in range(every - 1, 60, every)
    ]
    return made_session(evaluations=[msgspec.structs.replace(one, **facts) for one in made])


def known(session, *statements):
    return msgspec.structs.replace(session, statements=list(statements))


FREE = Statement(FILE, 50, is_whole=True, counter="i", is_in_loop=True)


@pytest.mark.parametrize(
    ("statements", "change", "advice"),
    [
        ([FREE], "if i % 100 == 0: torch.save(", ""),
        ([], "by hand: torch.save(", ""),
        ([msgspec.structs.replace(FREE, is_whole=False)], "by hand: torch.save(", ""),
        ([msgspec.structs.replace(FREE, counter="")], "by hand: torch.save(", ""),
        ([msgspec.structs.replace(FREE, guard="i % 3 == 0")], "by hand, in place of `if i % 3 == 0`: torch.save(", ""),
        ([msgspec.structs.replace(FREE, needed=["best"])], "by hand: torch.save(", "uses best: move or keep"),
    ],
)
def test_a_condition_is_written_only_around_what_nothing_else_needs(statements, change, advice):
    first = ranked(known(saving_session(1, 20.0), *statements))[0]
    assert first.cause == "frequent_saving" and first.change.startswith(f"every 100 steps: {change}")
    assert advice in first.advice


def test_a_line_in_the_loop_over_epochs_counts_epochs():
    """11 of 60 steps save, so the loop around that line makes 182 iterations in 1000 steps."""
    first = ranked(known(saving_session(5, 200.0), msgspec.structs.replace(FREE, counter="epoch")))[0]
    assert first.change.startswith("every 1000 steps: if epoch % 182 == 0: ")


def test_a_validation_whose_function_also_trains_is_made_rarer_by_hand():
    calls = Statement(FILE, 70, is_whole=True, counter="epoch", is_in_loop=True)
    inside = Statement(FILE, 60, function="validate", only_evaluates=True)
    (first, *_) = ranked(known(evaluated(200.0, 10), calls, inside))
    assert "if epoch % 13 == 0: validate(model, held_out)" in first.change
    both = msgspec.structs.replace(inside, only_evaluates=False)
    (first, *_) = ranked(known(evaluated(200.0, 10), calls, both))
    assert "by hand: validate(model, held_out)" in first.change


def test_gradients_are_switched_off_only_above_a_function_that_does_not_train():
    session = evaluated(200.0, 10, grad=True)
    inside = Statement(FILE, 60, function="validate", only_evaluates=True)
    assert ranked(known(session, inside))[0].change == "@torch.no_grad() above def validate"
    both = msgspec.structs.replace(inside, function="run_epoch", only_evaluates=False)
    change = ranked(known(session, both))[0].change
    assert change.startswith("by hand, around the evaluation only (run_epoch may also train)")
    assert ranked(session)[0].change.startswith("by hand, around the evaluation only: ")


@pytest.mark.parametrize(("own", "is_sure"), [(["compute_loss"], True), (["_save_checkpoint"], False)])
def test_an_argument_that_a_subclass_of_the_trainer_may_ignore(own, is_sure):
    session = saving_session(1, 20.0)
    sites = [*session.sites[:-1], msgspec.structs.replace(session.sites[-1], text="trainer.train()")]
    environment = msgspec.structs.replace(session.environment, libraries={"transformers": "1.0"})
    trainer = Trainer("transformers", "Distiller", own)
    session = msgspec.structs.replace(session, environment=environment, sites=sites, trainer=trainer)
    change = ranked(session)[0].change
    assert "save_steps=100" in change
    assert change.startswith("by hand: Distiller._save_checkpoint decides this") is not is_sure


def test_validation_too_often():
    first = ranked(evaluated(200.0, 10))[0]
    assert (first.cause, first.site.line) == ("frequent_validation", 70)
    assert 1.3 < first.predicted_gain < 520 / 320


def test_the_mean_step_is_not_shown_beside_the_median():
    session = evaluated(200.0, 10)
    slow = [msgspec.structs.replace(one, step_ms=132.0) if one.index % 5 == 1 else one for one in session.steps]
    first = ranked(msgspec.structs.replace(session, steps=slow))[0]
    assert first.evidence == "Validation takes 200 ms after every 10 steps, beside 520 ms of training: 28% of the time."


def test_validation_is_where_it_mostly_is():
    """An evaluation before the training itself has another line."""
    session = evaluated(200.0, 10)
    first, *rest = session.evaluations
    other = msgspec.structs.replace(first, caller=Site(FILE, 55, "validate(model, everything)", "main"))
    assert ranked(msgspec.structs.replace(session, evaluations=[other, *rest]))[0].site.line == 70


@pytest.mark.parametrize(
    ("library", "line", "words"),
    [
        ("lightning", "trainer.fit(model)", "ModelCheckpoint(every_n_train_steps="),
        ("transformers", "trainer.train()", "save_steps="),
    ],
)
def test_a_trainer_that_saves_gets_its_own_argument(library, line, words):
    session = saving_session(1, 20.0)
    sites = [*session.sites[:-1], msgspec.structs.replace(session.sites[-1], text=line)]
    environment = msgspec.structs.replace(session.environment, libraries={library: "1.0"})
    first = ranked(msgspec.structs.replace(session, environment=environment, sites=sites))[0]
    assert first.cause == "frequent_saving" and words in first.change


@pytest.mark.parametrize(
    ("library", "line", "change"),
    [
        ("lightning", "trainer.fit(model, loader)", "Trainer(..., val_check_interval="),
        ("transformers", "trainer.train()", 'TrainingArguments(..., eval_strategy="steps", eval_steps='),
        ("numpy", "machine.fit(model)", "by hand: machine.fit(model)"),
    ],
)
def test_a_trainer_that_validates_gets_its_own_argument(library, line, change):
    session = evaluated(200.0, 10, caller=Site(FILE, 70, line, "main"))
    environment = msgspec.structs.replace(session.environment, libraries={library: "1.0"})
    first = ranked(msgspec.structs.replace(session, environment=environment))[0]
    assert first.cause == "frequent_validation"
    assert change in first.change


@pytest.mark.parametrize(
    ("library", "line", "change"),
    [
        ("lightning", "trainer.fit(model, loader)", "Trainer(..., check_val_every_n_epoch=13)"),
        ("numpy", "acc = test(loader)", "by hand: acc = test(loader)"),
    ],
)
def test_validation_once_an_epoch_is_made_rarer_by_epochs(library, line, change):
    session = evaluated(200.0, 10, caller=Site(FILE, 70, line, "main"))
    environment = msgspec.structs.replace(session.environment, libraries={library: "1.0"})
    loaders = [made_loader(num_batches=10)]
    first = ranked(msgspec.structs.replace(session, environment=environment, loaders=loaders))[0]
    assert first.change == f"after every 13 epochs, not each: {change}"


def test_the_line_that_starts_a_trainer_and_not_who_called_for_that():
    train, main = Site(FILE, 51, "trainer.train()", "main"), Site(FILE, 55, "main()", "<module>")
    session = evaluated(200.0, 10, site=train, caller=main)
    assert ranked(session)[0].site == main
    environment = msgspec.structs.replace(session.environment, libraries={"transformers": "1.0"})
    first = ranked(msgspec.structs.replace(session, environment=environment))[0]
    assert first.site == train and "eval_steps=" in first.change


@pytest.mark.parametrize(("samples", "is_found"), [(4, False), (32, True)])
def test_a_learner_that_plays_between_updates_does_not_validate(samples, is_found):
    """It acts on a few states and learns from larger batches. Validation without a loader is recognised by its size."""
    session = evaluated(200.0, 1, loader=-1)
    acts = [Event("forward", 0, FIRST_NS, FIRST_NS + 1, samples=samples) for _ in range(60)]
    learns = [Event("forward", 0, FIRST_NS, FIRST_NS + 1, samples=32, grad=True, training=True) for _ in range(60)]
    session = diagnose(msgspec.structs.replace(session, events=[*session.events, *acts, *learns]))
    assert ("frequent_validation" in [one.cause for one in session.findings]) is is_found
    assert ("acts, on fewer samples" in evaluation(session)) is not is_found
    assert (session.summary.evaluation_share is None) is not is_found


def test_a_little_validation_is_fine():
    assert ranked(evaluated(30.0, 30)) == []


def test_gradients_in_validation_come_before_its_frequency():
    found = ranked(evaluated(200.0, 10, grad=True))
    assert [one.cause for one in found] == ["grad_in_evaluation"]
    assert found[0].site.line == 60
    assert 1.0 < found[0].predicted_gain < 1.2


def test_a_kept_graph_has_its_line():
    memory = [Memory(step, step, 2**30, 0, step, 50 + step) for step in range(100)]
    leak = Leak("losses", 80, 1000, Site(FILE, 44, "losses.append(loss)"))
    session = msgspec.structs.replace(made_session(memory=memory), leaks=[leak])
    first = ranked(session)[0]
    assert (first.cause, first.site.line) == ("growing_memory", 44)
    assert first.change == "losses.append(loss.item())"
    assert "losses holds 80" in first.evidence


@pytest.mark.parametrize(
    ("leak", "change"),
    [
        (
            Leak("total", 80, 0, Site(FILE, 44, "total += loss  # of the epoch"), is_sum=True),
            "total += loss.item()  # of the epoch",
        ),
        (Leak("log.kept", 80, 320, Site(FILE, 44, "log.kept[step] = loss")), "log.kept[step] = loss.item()"),
        (Leak("outputs", 80, 80_000, Site(FILE, 44, "outputs.append(out)")), "outputs.append(out.detach())"),
        (
            Leak("all", 80, 80_000, Site(FILE, 44, "all.append(model(x))")),
            "keep loss.item() of a single number, and .detach().cpu() copies of everything else that is needed later",
        ),
    ],
)
def test_growing_memory_changes_the_line_that_keeps(leak, change):
    memory = [Memory(step, step, 10**9, 0, *((step, step) if step % 20 == 0 else ())) for step in range(100)]
    session = msgspec.structs.replace(made_session(memory=memory), leaks=[leak])
    (finding,) = growing_memory.find(session, session.summary)
    assert (finding.change, finding.site.line) == (change, 44)


def test_a_dict_that_fills_may_be_a_cache():
    memory = [Memory(step, step, 10**9, 0, *((5, step) if step % 20 == 0 else ())) for step in range(100)]
    leak = Leak("cache", 95, 95 * 400_000, Site(FILE, 44, "cache[key] = decode(key)"), has_graph=False)
    session = msgspec.structs.replace(made_session(memory=memory), leaks=[leak])
    loader = msgspec.structs.replace(session.loaders[0], num_batches=1000)
    (finding,) = growing_memory.find(msgspec.structs.replace(session, loaders=[loader]), session.summary)
    assert "If cache is a cache that fills in the first epoch: it would hold" in finding.advice
    loader = msgspec.structs.replace(loader, num_batches=10)
    (finding,) = growing_memory.find(msgspec.structs.replace(session, loaders=[loader]), session.summary)
    assert not finding.advice


@pytest.mark.parametrize(
    "line", ['history.to_csv("h.csv")', "np.save(path, x)", "pickle.dump(rows, file)", "save_image(fake, p)"]
)
def test_a_table_or_picture_written_in_every_step_is_logging(line):
    """The library uses the same modules for reading."""
    first = ranked(made_session(other_ms=10, stacks=[other("read", 35, 60, line), other("compute", 28, 20)]))[0]
    assert (first.cause, first.site.line) == ("frequent_logging", 35)


def test_the_history_of_lbfgs_is_no_leak():
    """It keeps two more tensors after every update until its history is full."""
    memory = [Memory(step, step, 10**9 + 10**6 * step, 0, 0, 2 * step) for step in range(100)]
    session = made_session(memory=memory)
    assert growing_memory.find(session, session.summary)
    lbfgs = msgspec.structs.replace(session, optimizers=[made_optimizer(class_name="LBFGS")])
    assert growing_memory.find(lbfgs, session.summary) == []


def test_the_leak_that_explains_the_memory_is_named():
    series = [Memory(step, step * 10**7, 10**9 + step * 200_000, 0, step * 2, step * 2) for step in range(0, 200, 5)]
    sites = [Site(FILE, line, f"kept_{line}.append(x)", "main") for line in (40, 41)]
    leaks = [Leak("kept_40", 198, 198 * 4, sites[0]), Leak("kept_41", 195, 195 * 199_000, sites[1])]
    session = msgspec.structs.replace(made_session(memory=series), leaks=leaks)
    found = next(one for one in ranked(session) if one.cause == "growing_memory")
    assert found.site.line == 41
    smaller = [leaks[0], msgspec.structs.replace(leaks[1], num_bytes=195 * 60_000)]  # the rest is in its graph
    again = next(one for one in ranked(msgspec.structs.replace(session, leaks=smaller)) if one.cause == found.cause)
    assert again.site.line == 41
    assert found.advice.endswith("The values themselves are 199 kB each: keep few of them, or a number.")
