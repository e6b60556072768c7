"""Measures decoding of photographs with Pillow: in one process, and in one process per core. Needs Pillow."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from typing import Final

from slipstream.machine.speedtest import subprocesses
from slipstream.numbers import plural
from slipstream.records import Reading

SIZE: Final = (500, 375)  # the usual size of an image in ImageNet
_GRACE_S: Final = 60.0


class DecodeError(Exception):
    """Decoding could not be measured. The message is a sentence for the user."""


def read_decoding(seconds: float, num_processes: int) -> list[Reading]:
    """Returns the images per second of one core, and the share of that rate that each core reaches when all cores
    decode at once."""
    detail = f"JPEG of {SIZE[0]} x {SIZE[1]}, Pillow"
    alone = _rates(seconds, 1)[0]
    readings = [Reading("decode", alone, "images/s", detail=f"{detail}, one process")]
    if num_processes > 1:
        together = _rates(seconds, num_processes)
        share = sum(together) / num_processes / alone
        readings.append(
            Reading("decode_scaling", share, "of one core each", detail=plural(num_processes, "process", "es"))
        )
    return readings


def _rates(seconds: float, num_processes: int) -> list[float]:
    """Returns the rate of each process. All processes decode at the same time: a process that is ready waits for a line
    before it decodes."""
    with tempfile.TemporaryDirectory() as folder:
        running = [subprocesses.start(__name__, str(seconds), folder=folder) for _ in range(num_processes)]
        try:
            for child in running:
                _await_ready(child)
            for child in running:
                assert child.stdin is not None
                child.stdin.write(b"go\n")
                child.stdin.flush()
            return [float(child.communicate(timeout=seconds + _GRACE_S)[0]) for child in running]
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            raise DecodeError(f"a decoding process did not answer ({error})") from None
        finally:
            for child in running:
                child.kill()
                child.communicate()


def _await_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    if child.stdout.readline() != b"ready\n":
        raise DecodeError(f"images cannot be decoded here ({subprocesses.last_line(child.communicate()[1])})")


def make_photograph() -> bytes:
    """Returns a JPEG of noise over soft shapes, which compresses about as well as a photograph."""
    from PIL import Image

    bands = []
    for number in range(3):
        soft = Image.effect_noise((SIZE[0] // 25, SIZE[1] // 25), 90).resize(SIZE, Image.Resampling.BICUBIC)
        bands.append(Image.blend(soft, Image.effect_noise(SIZE, 30 + number), 0.3))
    file = io.BytesIO()
    Image.merge("RGB", bands).save(file, "JPEG", quality=90)
    return file.getvalue()


def decode_for(seconds: float, data: bytes) -> float:
    """Decodes the image repeatedly and returns the images per second."""
    from PIL import Image

    number, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        Image.open(io.BytesIO(data)).convert("RGB")
        number += 1
    return number / spent


def main() -> None:
    data = make_photograph()
    decode_for(0.05, data)
    print("ready", flush=True)
    sys.stdin.readline()
    print(decode_for(float(sys.argv[1]), data), flush=True)


if __name__ == "__main__":
    main()
