import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Length, Site, TensorFacts
from slipstream.testing.made_sessions import FILE, LOADER_SITE, made_loader, made_session, made_stack

LIGHT = {"forward_ms": 3.0, "backward_ms": 6.0, "input_ms": 40.0}
COLLATE_SITE = Site(FILE, 20, "def pad(batch):", "pad")


def ranked(**facts):
    return diagnose(made_session(**{**LIGHT, **facts})).findings


@pytest.mark.parametrize("workers", [0, 2])
def test_a_python_loop_over_values_comes_first(workers):
    role = "worker" if workers else "main"
    stacks = [
        made_stack("python", 15, 70, in_call=False, role=role),
        made_stack("transform", 15, 20, role=role),
        made_stack("transform", 16, 20, role=role),
    ]
    first = ranked(stacks=stacks, num_workers=workers, work_ms=80 if workers else None)[0]
    assert first.cause == "slow_transform"
    assert first.site.line == 15
    assert first.predicted_gain > 1.8


@pytest.mark.parametrize("stage", ["decode", "read", "collate", "transform"])
def test_the_line_that_configures_a_framework_is_not_where_batches_are_built(stage):
    """The Hugging Face Trainer builds the loader, and no line of the user's is below it."""
    configured = Site(FILE, 210, "model_args, data_args, training_args = parser.parse_args_into_dataclasses()", "main")
    stacks = [made_stack(stage, 0, 90, file="", function="", expression="", leaf="lib/image.py:decode_example")]

    def site_of(framework):
        loader = made_loader(0, framework=framework, site=configured, getitem_site=None)
        found = {one.cause: one.site for one in ranked(stacks=stacks, loader=loader, **MORE_INPUT)}
        return found[f"slow_{stage}"]

    assert site_of("transformers") is None
    assert site_of("") == configured


MORE_INPUT = {"work_ms": 40.0}


def test_the_head_of_a_function_is_not_the_line_to_change():
    stacks = [
        made_stack("transform", 12, 40, in_call=False, expression="def __call__(self, image):"),
        made_stack("transform", 16, 10, in_call=False, expression="noisy[y, x]"),
        made_stack("transform", 15, 50, expression="random.random()"),
    ]
    first = ranked(stacks=stacks)[0]
    assert (first.cause, first.site.line) == ("slow_transform", 16)


def test_time_inside_a_library_is_first_of_all_a_lack_of_workers():
    stacks = [made_stack("transform", 15, 90, leaf="fft/_pocketfft.py:rfft"), made_stack("transform", 16, 10)]
    found = ranked(stacks=stacks)
    assert [one.cause for one in found] == ["no_workers", "slow_transform"]
    assert found[1].predicted_gain < 1.5


def test_resizing_has_an_answer_of_its_own():
    stacks = [made_stack("transform", 15, 90, leaf="PIL/Image.py:resize"), made_stack("transform", 16, 10)]
    assert ranked(stacks=stacks)[1].techniques[0] == "fast_resize"


TOKENIZER = {
    "expression": "self.tokenizer(text, truncation=True)",
    "leaf": "transformers/tokenization_utils_tokenizers.py:_encode_plus",
}


def test_texts_are_tokenized_once():
    """Random numbers of other operations do not matter: masks and crops come after tokenizing."""
    stacks = [made_stack("transform", 15, 90, **TOKENIZER), made_stack("transform", 16, 10)]
    for draws in (None, True):
        first = ranked(stacks=stacks, loader=made_loader(draws=draws))[0]
        assert (first.cause, first.site.line) == ("slow_transform", 15)
        assert "tokenize all texts once" in first.change
        assert ("sample_cache" in first.techniques) is not draws
    (single,) = (one for one in ranked(stacks=stacks, length=Length(num_epochs=1)) if one.cause == "slow_transform")
    assert "once" not in single.change and single.predicted_gain < first.predicted_gain


def test_texts_tokenized_by_the_collate_function():
    loader = made_loader(collate_name="pad", collate_site=COLLATE_SITE)
    stacks = [made_stack("collate", 24, 90, function="pad", **TOKENIZER), made_stack("transform", 15, 10)]
    found = {one.cause: one for one in ranked(stacks=stacks, loader=loader)}["slow_collate"]
    assert found.change.startswith("tokenize all texts once")


@pytest.mark.parametrize(
    ("draws", "expression", "words", "keeps"),
    [
        (False, "np.fft.rfft(wave)", "do it once: store", True),
        (False, "warp(image, rng.normal(size=2))", "the result kept", True),  # a generator that was not observed
        (True, "np.fft.rfft(wave)", "before the random part", False),
        (None, "np.fft.rfft(wave)", "the result kept", True),
    ],
)
def test_what_draws_no_random_number_is_done_once(draws, expression, words, keeps):
    stacks = [made_stack("transform", 15, 90, expression=expression), made_stack("transform", 16, 10)]
    found = {one.cause: one for one in ranked(stacks=stacks, loader=made_loader(draws=draws))}
    assert words in found["slow_transform"].change
    assert ("sample_cache" in found["slow_transform"].techniques) is keeps
    assert ("Random augmentations" in found["no_workers"].advice) is (draws is not False)


def test_workers_tell_with_each_batch_whether_they_drew():
    stacks = [made_stack("transform", 15, 90, role="worker"), made_stack("transform", 16, 10, role="worker")]
    session = made_session(**LIGHT, stacks=stacks, num_workers=2, work_ms=90)
    for drew, words in ((False, "do it once"), (True, "before the random part")):
        told = [msgspec.structs.replace(session.fetches[0], drew=drew), *session.fetches[1:]]
        found = diagnose(msgspec.structs.replace(session, fetches=told)).findings
        assert words in {one.cause: one for one in found}["slow_transform"].change


def test_a_library_written_in_python_counts_as_python():
    stacks = [made_stack("transform", 15, 90, leaf="core/indexing.py:__getitem__", in_call=False)]
    assert ranked(stacks=stacks)[0].cause == "slow_transform"


def test_waiting_is_not_a_slow_transform():
    stacks = [made_stack("transform", 15, 100, expression="time.sleep(0.002)")]
    assert [one.cause for one in ranked(stacks=stacks, cpu_share=0.05)] == ["no_workers"]


def test_decoding():
    stacks = [made_stack("decode", 18, 80, role="worker"), made_stack("transform", 19, 20, role="worker")]
    first = ranked(stacks=stacks, num_workers=2, work_ms=90)[0]
    assert (first.cause, first.site.line) == ("slow_decode", 18)
    assert "decode_cache" in first.techniques


@pytest.mark.parametrize(
    ("leaf", "shrinking", "side", "is_told"),
    [
        ("PIL/JpegImagePlugin.py:load_read", "img.resize((96, 96))", 96, True),
        ("PIL/PngImagePlugin.py:load_read", "img.resize((96, 96))", 96, False),
        ("PIL/JpegImagePlugin.py:load_read", "img.rotate(3)", 96, False),
        ("PIL/JpegImagePlugin.py:load_read", "img.crop(box).resize((96, 96))", 96, False),
        # 2.5 ms may be the image's own cost.
        ("PIL/JpegImagePlugin.py:load_read", "img.resize((448, 448))", 448, False),
    ],
)
def test_large_jpegs_that_are_shrunk_at_once(leaf, shrinking, side, is_told):
    stacks = [
        made_stack("decode", 18, 78, role="worker", leaf="PIL/ImageFile.py:load"),
        made_stack("decode", 18, 2, role="worker", leaf=leaf),
        made_stack("transform", 19, 20, role="worker", expression=shrinking),
    ]
    batch = TensorFacts("[0]", [32, 3, side, side], "float32", "cpu", 32 * 3 * side * side * 4)
    loader = made_loader(2, tensor_facts=[batch])
    first = ranked(stacks=stacks, num_workers=2, work_ms=100, loader=loader)[0]
    assert first.cause == "slow_decode"
    assert ("image.draft" in first.advice and "96 x 96" in first.advice) is is_told
    assert ("scaled_decode" in first.techniques) is is_told


def test_a_cache_does_not_help_a_single_epoch():
    stacks = [made_stack("decode", 18, 100, role="worker")]
    many = ranked(stacks=stacks, num_workers=2, work_ms=90)[0].predicted_gain
    once = ranked(stacks=stacks, num_workers=2, work_ms=90, length=Length(num_epochs=1))
    assert all(one.predicted_gain < 1.3 for one in once)
    assert many > 2


def test_reading():
    stacks = [made_stack("read", 14, 90, role="worker", expression="file.read()"), made_stack("transform", 19, 10)]
    first = ranked(stacks=stacks, num_workers=2, work_ms=90)[0]
    assert (first.cause, first.site.line) == ("slow_read", 14)


def test_a_wait_on_a_line_that_reads_is_reading():
    stacks = [made_stack("wait", 14, 90, expression="requests.get(url).read()")]
    assert "slow_read" in [one.cause for one in ranked(stacks=stacks, cpu_share=0.05)]


def test_collating_in_the_users_function():
    loader = made_loader(2, collate_name="pad", collate_site=COLLATE_SITE)
    stacks = [
        made_stack("python", 24, 60, role="worker", function="pad", in_call=False),
        made_stack("collate", 25, 30, role="worker", function="pad"),
        made_stack("transform", 15, 10, role="worker"),
    ]
    first = ranked(stacks=stacks, loader=loader, num_workers=2, work_ms=90)[0]
    assert (first.cause, first.site.line) == ("slow_collate", 24)


def test_collating_in_the_users_function_behind_a_librarys_collator():
    loader = made_loader(collate_name="RemoveColumnsCollator", collate_site=None)
    stacks = [made_stack("collate", 29, 90, function="tokenize"), made_stack("transform", 15, 10)]
    found = {one.cause: one for one in ranked(stacks=stacks, loader=loader)}["slow_collate"]
    assert found.site.line == 29 and "RemoveColumnsCollator" in found.evidence
    assert "batched_fetch" not in found.techniques


def test_a_librarys_collator_makes_what_no_index_gives():
    """As with PyG's graphs: arrays indexed once per batch would not give a graph."""
    loader = made_loader(collate_name="Collater", collate_site=None)
    stacks = [made_stack("collate", 0, 80, file="", leaf="data/separate.py:separate"), made_stack("other", 50, 20)]
    assert "slow_collate" not in [one.cause for one in ranked(stacks=stacks, loader=loader)]


def test_collating_in_torch_points_at_the_loader():
    stacks = [made_stack("collate", 50, 80, function="main"), made_stack("other", 50, 20, function="main")]
    found = {one.cause: one for one in ranked(stacks=stacks)}
    assert found["slow_collate"].site == LOADER_SITE
    assert "batched_fetch" in found["slow_collate"].techniques


def test_batches_that_come_whole_are_not_collated():
    """batch_size=None with a sampler of batches: the fix for collating is already in place."""
    loader = made_loader(collate_name="default_convert", batch_size=None)
    stacks = [made_stack("collate", 0, 90, file="", leaf="_utils/collate.py:default_convert")]
    assert "slow_collate" not in [one.cause for one in ranked(stacks=stacks, loader=loader)]


def test_a_dataset_of_torch_is_picked_one_by_one():
    stacks = [made_stack("transform", 0, 80, file="", leaf="data/dataset.py:<genexpr>"), made_stack("collate", 0, 20)]
    assert "slow_collate" in [one.cause for one in ranked(stacks=stacks)]


def test_a_librarys_transforms_are_no_collating():
    """torchvision's MNIST with Compose(Resize, ToTensor, Normalize): no line of the user's is below the loader."""
    stacks = [
        made_stack("transform", 0, 30, file="", leaf="transforms/functional.py:to_tensor"),
        made_stack("transform", 0, 60, file="", leaf="transforms/_functional_tensor.py:normalize"),
        made_stack("collate", 0, 10, file="", leaf="_utils/collate.py:collate"),
    ]
    found = {one.cause: one for one in ranked(stacks=stacks)}
    assert "slow_collate" not in found
    assert found["slow_transform"].site == LOADER_SITE
    assert (
        "90% of the" in found["slow_transform"].evidence and "tensor.py:normalize" in found["slow_transform"].evidence
    )
    assert found["slow_transform"].predicted_gain < found["no_workers"].predicted_gain


def test_hand_over():
    stacks = [
        made_stack("handover", 50, 70),
        made_stack("wait", 50, 30),
        made_stack("handover", 0, 50, role="worker", file=""),
        made_stack("transform", 15, 50, role="worker"),
    ]
    pickled = made_loader(2, tensor_facts=[])
    first = ranked(stacks=stacks, num_workers=2, work_ms=30, loader=pickled)[0]
    assert (first.cause, first.site) == ("heavy_handover", LOADER_SITE)
    assert "heavy_handover" not in [one.cause for one in ranked(stacks=stacks, num_workers=2, work_ms=30)]
    assert first.predicted_gain <= 50.5 / 10.5


def test_small_tensors_do_not_hide_the_objects_beside_them():
    unpickling = made_stack("handover", 0, 40, file="", leaf="multiprocessing/queues.py:get")
    receiving = made_stack("handover", 0, 40, file="", leaf="multiprocessing/connection.py:_recv")
    first = ranked(stacks=[unpickling, receiving], num_workers=2, work_ms=30)[0]
    assert (first.cause, first.site) == ("heavy_handover", LOADER_SITE)
    assert "of the workers' time" not in first.evidence, "they were not sampled"
    for waits in (msgspec.structs.replace(unpickling, in_call=False), msgspec.structs.replace(unpickling, count=10)):
        found = ranked(stacks=[waits, receiving], num_workers=2, work_ms=30)
        assert "heavy_handover" not in [one.cause for one in found]


@pytest.mark.parametrize(("decoding", "words"), [(80, "takes most of"), (40, "takes a good part of")])
def test_most_of_the_input_is_more_than_half(decoding, words):
    stacks = [
        made_stack("decode", 18, decoding, role="worker"),
        made_stack("transform", 19, 100 - decoding, role="worker"),
    ]
    found = {one.cause: one for one in ranked(stacks=stacks, num_workers=2, work_ms=90)}
    assert words in found["slow_decode"].title


def test_an_input_that_costs_nothing_is_left_alone():
    stacks = [made_stack("python", 15, 100, in_call=False), made_stack("decode", 15, 50)]
    assert diagnose(made_session(stacks=stacks)).findings == []
