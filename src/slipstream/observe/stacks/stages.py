"""Determines the stage of a stack sample: what the script was doing. The stage is derived from the library frames that
the user's line called and, because C functions have no frame, from the expression on the line itself."""

from __future__ import annotations

import linecache
import re
from functools import lru_cache
from types import CodeType, FrameType

from slipstream.records import Stage

# (part of the file's path, function or "" for any, stage), in order of precedence. Matched from the leaf outwards.
# If the stage is None, the surrounding frames decide. For example, an image may be encoded for a log or for a file.
_FRAMES: tuple[tuple[str, str, Stage | None], ...] = (
    ("/multiprocessing/connection.py", "wait", "wait"),
    ("/multiprocessing/connection.py", "_poll", "wait"),
    ("/multiprocessing/connection.py", "poll", "wait"),
    ("/selectors.py", "select", "wait"),
    ("/threading.py", "wait", "wait"),
    ("/threading.py", "join", "wait"),
    ("/queue.py", "get", "wait"),
    ("/multiprocessing/synchronize.py", "", "wait"),
    ("/multiprocessing/popen_fork.py", "", "handover"),
    ("/multiprocessing/", "", "handover"),
    ("/torch/multiprocessing/", "", "handover"),
    ("/torch/storage.py", "_share_filename_cpu_", "handover"),
    ("/torch/storage.py", "_share_fd_cpu_", "handover"),
    ("/torch/utils/data/_utils/pin_memory.py", "", "pin"),
    ("/torch/utils/data/_utils/collate.py", "", "collate"),
    ("/PIL/Image.py", "save", None),
    ("/PIL/ImageFile.py", "_save", None),
    ("/PIL/ImageFile.py", "_encode_tile", None),
    ("ImagePlugin.py", "_save", None),
    ("/PIL/PngImagePlugin.py", "putchunk", None),
    ("/PIL/PngImagePlugin.py", "write", None),
    ("/PIL/ImageFile.py", "", "decode"),
    ("/PIL/Image.py", "open", "decode"),
    ("/PIL/Image.py", "_decompression_bomb_check", "decode"),
    ("ImagePlugin.py", "", "decode"),
    ("/torchvision/io/", "", "decode"),
    ("/torchcodec/", "", "decode"),
    ("/imageio/", "", "decode"),
    ("/skimage/io/", "", "decode"),
    ("/soundfile.py", "", "decode"),
    ("/librosa/core/audio.py", "", "decode"),
    ("/torchaudio/", "load", "decode"),
    ("/decord/", "", "decode"),
    ("/gzip.py", "", "read"),
    ("/zipfile.py", "", "read"),
    ("/zipfile/", "", "read"),
    ("/tarfile.py", "", "read"),
    ("/lzma.py", "", "read"),
    ("/bz2.py", "", "read"),
    ("/numpy/lib/npyio.py", "", "read"),
    ("/numpy/lib/_npyio_impl.py", "", "read"),
    ("/numpy/lib/format.py", "", "read"),
    ("/numpy/lib/_format_impl.py", "", "read"),
    ("/torch/serialization.py", "load", "read"),
    ("/torch/serialization.py", "_load", "read"),
    ("/pathlib.py", "read_bytes", "read"),
    ("/pathlib.py", "read_text", "read"),
    ("/pathlib.py", "open", "read"),
    ("/h5py/", "", "read"),
    ("/zarr/", "", "read"),
    ("/fsspec/", "", "read"),
    ("/pandas/io/", "", "read"),
    ("/torch/serialization.py", "save", "saving"),
    ("/torch/serialization.py", "_save", "saving"),
    ("/safetensors/torch.py", "save_file", "saving"),
    ("/torch/_tensor_str.py", "", "logging"),
    ("/logging/__init__.py", "", "logging"),
    ("/torch/utils/tensorboard/", "", "logging"),
    ("/tensorboardX/", "", "logging"),
    ("/tqdm/", "", "logging"),
    ("/wandb/", "", "logging"),
    ("/mlflow/", "", "logging"),
    ("/matplotlib/", "", "logging"),
    ("/json/", "dump", "logging"),
    ("/json/encoder.py", "", "logging"),
    ("/csv.py", "writerow", "logging"),
    ("/sklearn/metrics/_classification.py", "", "metrics"),  # not pairwise.py: distances may be part of the training
    ("/sklearn/metrics/_ranking.py", "", "metrics"),
    ("/sklearn/metrics/_regression.py", "", "metrics"),
    ("/torchmetrics/", "", "metrics"),
    ("/evaluate/module.py", "", "metrics"),
    ("/torch/distributions/", "", "compute"),
    ("/torch/autograd/", "", "compute"),
    ("/torch/nn/", "", "compute"),
    ("/torch/optim/", "", "compute"),
    ("/torch/_tensor.py", "backward", "compute"),
)

# Stages of called functions, by the end of their names. Needed for C functions, which have no frame.
_CALLEES: tuple[tuple[re.Pattern[str], Stage], ...] = (
    (re.compile(r"\bsleep$"), "wait"),
    (re.compile(r"\btorch\.save$|\bsave_file$|\bsave_pretrained$"), "saving"),
    (re.compile(r"\b(imread|imdecode|read_image|decode_\w+)$|\bImage\.open$"), "decode"),
    (re.compile(r"\.(item|tolist|cpu|numpy)$"), "sync"),
    (re.compile(r"^print$|\.(write|writerows?|flush|fsync|info|debug|warning|add_scalar|log)$"), "logging"),
    (
        re.compile(
            r"\bopen$|\.(read|readline|readlines|read_bytes|read_text|readinto)$|\b(np|numpy)\.(load|fromfile|loadtxt)$"
            r"|\btorch\.load$|\bpickle\.loads?$|\bread_(csv|parquet|json|feather)$"
        ),
        "read",
    ),
)
# `log` of a mathematics library is a logarithm, not a log message.
_LOGARITHM = re.compile(r"\b(c?math|np|numpy|torch)\.log$")
# The key is file and name. Hashing a code object at every sample would be slow, because it hashes the whole contents.
_frame_stages: dict[tuple[str, str], Stage | None] = {}


def stage_of_code(code: CodeType) -> Stage | None:
    """Returns the stage that a library function belongs to, or None if it is not known."""
    key = (code.co_filename, code.co_name)
    if key in _frame_stages:
        return _frame_stages[key]
    name = code.co_filename.replace("\\", "/")
    found: Stage | None = None
    for part, function, stage in _FRAMES:
        if part in name and (not function or function == code.co_name):
            found = stage
            break
    _frame_stages[key] = found
    return found


@lru_cache(maxsize=4096)
def stage_of_expression(expression: str) -> Stage | None:
    """Returns the stage of a call, by the function that is called. Its arguments are ignored, because they have already
    been evaluated."""
    name = callee(expression)
    if _LOGARITHM.search(name) or expression.endswith(".log()"):
        return None
    return next((stage for pattern, stage in _CALLEES if pattern.search(name)), None)


def callee(expression: str) -> str:
    """Returns `open(path).read` for `open(path).read()`, and "" for an expression that is not a call."""
    if not expression.endswith(")"):
        return ""
    depth = 0
    for position in range(len(expression) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(expression[position], 0)
        if depth == 0:
            return expression[:position].strip()
    return ""


_expressions: dict[tuple[int, int], tuple[CodeType, str]] = {}  # by identity; the reference keeps the id valid


def expression_of(frame: FrameType) -> str:
    """Returns the expression that the frame is evaluating. Returns the whole line if the position in the line is not
    known, as before Python 3.11, or if the expression spans several lines."""
    key = (id(frame.f_code), frame.f_lasti)
    known = _expressions.get(key)
    if known is None:
        known = _expressions[key] = (frame.f_code, _read_expression(frame))
    return known[1]


def line_of(frame: FrameType) -> int:
    """Returns the frame's line. Between two lines a frame may have no line; then the line before is returned."""
    return frame.f_lineno or _line_before(frame.f_code, frame.f_lasti)


def _line_before(code: CodeType, position: int) -> int:
    """Returns the last line of the instructions up to this position. The first line of the code object is only a
    fallback, because nothing is computed there."""
    lines = [line for start, _, line in code.co_lines() if start <= position and line]
    return lines[-1] if lines else code.co_firstlineno


def _read_expression(frame: FrameType) -> str:
    code = frame.f_code
    text = linecache.getline(code.co_filename, line_of(frame))
    if not hasattr(code, "co_positions"):
        return text.strip()
    for position, where in enumerate(code.co_positions()):
        if position == frame.f_lasti // 2:
            line, end_line, column, end_column = where
            if line is None or column is None or end_column is None or line != end_line:
                break
            whole = linecache.getline(code.co_filename, line).encode()
            # A generator that is being resumed has no column.
            return whole[column:end_column].decode(errors="replace") or text.strip()
    return text.strip()
