from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace
from typing import cast

import pytest
from PIL import Image, ImageFile, PngImagePlugin

from slipstream.observe.stacks.stages import expression_of, line_of, stage_of_code, stage_of_expression


@pytest.mark.parametrize(
    ("expression", "stage"),
    [
        ("cv2.imread(path)", "decode"),
        ("Image.open(path)", "decode"),
        ("open(path, 'rb').read()", "read"),
        ("np.load(name)", "read"),
        ("loss.item()", "sync"),
        ("print(loss)", "logging"),
        ("writer.writerows(rows)", "logging"),
        ("os.fsync(log.fileno())", "logging"),
        ("torch.save(model.state_dict(), path)", "saving"),
        ("time.sleep(0.01)", "wait"),
        ("run.log({'loss': loss})", "logging"),
        ("np.log(mel + 1e-6)", None),
        ("probabilities.log()", None),
        ("x * 2", None),
        ("reader.bread(3)", None),
    ],
)
def test_expressions_without_a_python_frame(expression: str, stage: str | None) -> None:
    assert stage_of_expression(expression) == stage


@pytest.mark.skipif(sys.version_info < (3, 11), reason="positions inside a line came with 3.11")
def test_the_expression_on_a_line_not_the_whole_line() -> None:
    def here(frame: FrameType) -> str:
        return expression_of(frame)

    text = str(1) + here(sys._getframe()) + str(2)
    assert text == "1here(sys._getframe())2"


def test_frame_without_a_line_gets_the_line_before() -> None:
    """CPython gives None between two lines. linecache raises for None, which would stop the sampler. The first line of
    the script is not a substitute, because it may be a comment."""
    code = line_of.__code__
    last = len(code.co_code) - 2
    frame = cast(FrameType, SimpleNamespace(f_code=code, f_lasti=last, f_lineno=None))
    assert line_of(frame) == code.co_firstlineno + 2
    nowhere = cast(FrameType, SimpleNamespace(f_code=code, f_lasti=-2, f_lineno=None))
    assert line_of(nowhere) == code.co_firstlineno
    assert expression_of(nowhere) == "def line_of(frame: FrameType) -> int:"


def test_a_generator_that_is_resumed_has_its_line() -> None:
    seen: list[str] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_name == "<genexpr>" and event == "call":
            seen.append(expression_of(frame))

    sys.setprofile(on_event)
    sum(x * x for x in range(3))
    sys.setprofile(None)
    assert seen and all(text == "sum(x * x for x in range(3))" or "x * x" in text for text in seen)


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("/lib/site-packages/sklearn/metrics/_ranking.py", "metrics"),
        ("/lib/site-packages/torchmetrics/metric.py", "metrics"),
        ("/lib/site-packages/torch/distributions/multivariate_normal.py", "compute"),
        ("/lib/site-packages/sklearn/metrics/pairwise.py", None),
    ],
)
def test_stage_of_a_library_file(file: str, stage: str | None) -> None:
    code = compile("0", file, "exec")
    assert stage_of_code(code) == stage


def test_encoding_an_image_is_not_decoding() -> None:
    """An image is encoded for a log, for a file or by an augmentation; the frames around say for what."""
    assert stage_of_code(ImageFile.ImageFile.load.__code__) == "decode"
    assert stage_of_code(Image.Image.save.__code__) is None
    assert stage_of_code(ImageFile._save.__code__) is None
    assert stage_of_code(PngImagePlugin._save.__code__) is None
    assert stage_of_code(PngImagePlugin.putchunk.__code__) is None
