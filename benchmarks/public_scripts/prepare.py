"""Prepares a folder of public repositories for `numerics_errors.py --public`: made data where the scripts look for
theirs, a stand-in for torchvision that makes its data, and the list of commands.

The folder holds clones of pytorch/examples, yunjey/pytorch-tutorial, eriklindernoren/PyTorch-GAN, karpathy/minGPT and
karpathy/nanoGPT. The scripts themselves are not changed.
"""

from __future__ import annotations

import array
import pickle
import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def prepare(folder: Path) -> None:
    draws = random.Random(0)
    _make_text(folder / "examples" / "word_language_model" / "data" / "made", draws)
    _make_tokens(folder / "nanoGPT" / "data" / "shakespeare_char", draws)
    stand_in = folder / "_stand_in"
    shutil.copytree(HERE / "torchvision", stand_in / "torchvision", dirs_exist_ok=True)
    (stand_in / "made.dist-info").mkdir(exist_ok=True)  # it is a library, not the user's code
    shutil.copy(HERE / "scripts.json", folder / "scripts.json")


def _make_text(folder: Path, draws: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, num_words in (("train", 40_000), ("valid", 2000), ("test", 2000)):
        word, words = 0, []
        for _ in range(num_words):
            word = (word * 7 + draws.randint(0, 5)) % 300
            words.append(f"w{word}")
        lines = [" ".join(words[start : start + 20]) for start in range(0, num_words, 20)]
        (folder / f"{name}.txt").write_text("\n".join(lines))


def _make_tokens(folder: Path, draws: random.Random) -> None:
    for name, num_tokens in (("train", 100_000), ("val", 5000)):
        token, tokens = 0, array.array("H")
        for _ in range(num_tokens):
            token = (token * 5 + draws.randint(0, 3)) % 65
            tokens.append(token)
        (folder / f"{name}.bin").write_bytes(tokens.tobytes())
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
