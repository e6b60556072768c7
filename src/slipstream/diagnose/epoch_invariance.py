"""Whether the work on samples gives the same result in every epoch, so that doing it once is enough.

The answer depends on whether random numbers were drawn while batches were built, and on the names of the functions that
were called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.diagnose.hotspots import total
from slipstream.records import Loader, Session, StackCount

RANDOM = re.compile(r"rng\b|rand|shuffle|choice|jitter|augment|noise|dropout", re.IGNORECASE)
# Tokenizers map words to numbers by a fixed rule. Random operations on texts (masks, crops) come after the tokenizer.
TEXT = re.compile(r"tokeni[sz]|\bbpe\b|lemmati[sz]|\bstem(mer)?\b|sentencepiece|vocab", re.IGNORECASE)
PARSING = re.compile(r"\b(u?json|orjson|yaml)\.(loads?|safe_load)\b|\bfromstring\b|\bunpackb\b")
TEXT_LEAVES = ("transformers/tokenization", "tokenizers/", "sentencepiece/", "tiktoken/", "nltk/", "spacy/")
PARSING_LEAVES = ("json/decoder.py:", "json/scanner.py:", "etree/ElementTree.py:")
MOST = 0.5  # Share of the stack samples that must be of one kind


def draws(session: Session, loader: Loader) -> bool | None:
    """Whether random numbers were drawn while the loader's batches were built; None if that was not observed."""
    seen = [fetch.drew for fetch in session.fetches if fetch.loader == loader.ident and fetch.drew is not None]
    return any(seen) if seen else loader.draws


def is_text(stacks: Sequence[StackCount]) -> bool:
    return _are_mostly(stacks, TEXT, TEXT_LEAVES)


def is_parsing(stacks: Sequence[StackCount]) -> bool:
    return _are_mostly(stacks, PARSING, PARSING_LEAVES)


def repeats(session: Session, loader: Loader, stacks: Sequence[StackCount], others: Sequence[StackCount]) -> bool:
    """Whether work on samples of the dataset gives the same result every time.

    `stacks` are the stack samples of this work, and `others` are the samples of everything that builds the batch.
    Tokenizing and parsing count as work with the same result. A random generator that cannot be observed is recognised
    by its name among the called functions.
    """
    if is_text(stacks) or is_parsing(stacks):
        return True
    return draws(session, loader) is False and not any(RANDOM.search(f"{one.expression} {one.leaf}") for one in others)


def _are_mostly(stacks: Sequence[StackCount], names: re.Pattern[str], leaves: tuple[str, ...]) -> bool:
    def is_of_kind(stack: StackCount) -> bool:
        return stack.leaf.startswith(leaves) or bool(names.search(f"{stack.expression} {stack.function}"))

    return total(stacks, is_of_kind) > MOST * total(stacks)
