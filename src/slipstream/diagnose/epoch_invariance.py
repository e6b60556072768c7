"""Whether work on samples gives the same in every epoch, so that once would be enough: from the random numbers that
were drawn while batches were built and, where nobody looked, from the names of what was called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.diagnose.hotspots import total
from slipstream.records import Loader, Session, StackCount

RANDOM = re.compile(r"rng\b|rand|shuffle|choice|jitter|augment|noise|dropout", re.IGNORECASE)
# Words become numbers by a fixed rule; what is random about texts (masks, crops) comes after it.
TEXT = re.compile(r"tokeni[sz]|\bbpe\b|lemmati[sz]|\bstem(mer)?\b|sentencepiece|vocab", re.IGNORECASE)
PARSING = re.compile(r"\b(u?json|orjson|yaml)\.(loads?|safe_load)\b|\bfromstring\b|\bunpackb\b")
TEXT_LEAVES = ("transformers/tokenization", "tokenizers/", "sentencepiece/", "tiktoken/", "nltk/", "spacy/")
PARSING_LEAVES = ("json/decoder.py:", "json/scanner.py:", "etree/ElementTree.py:")
MOST = 0.5  # of the samples that must be of a kind


def draws(session: Session, loader: Loader) -> bool | None:
    """Whether random numbers were drawn in building its batches; None: nobody looked."""
    seen = [fetch.drew for fetch in session.fetches if fetch.loader == loader.ident and fetch.drew is not None]
    return any(seen) if seen else loader.draws


def is_text(stacks: Sequence[StackCount]) -> bool:
    return _are_mostly(stacks, TEXT, TEXT_LEAVES)


def is_parsing(stacks: Sequence[StackCount]) -> bool:
    return _are_mostly(stacks, PARSING, PARSING_LEAVES)


def repeats(session: Session, loader: Loader, stacks: Sequence[StackCount], others: Sequence[StackCount]) -> bool:
    """Whether what these samples were taken in gives the same every time. `others`: all that builds the batch. A random
    generator may be one that nobody could watch: then its name shows in what was called."""
    if is_text(stacks) or is_parsing(stacks):
        return True
    return draws(session, loader) is False and not any(RANDOM.search(f"{one.expression} {one.leaf}") for one in others)


def _are_mostly(stacks: Sequence[StackCount], names: re.Pattern[str], leaves: tuple[str, ...]) -> bool:
    def is_of_kind(stack: StackCount) -> bool:
        return stack.leaf.startswith(leaves) or bool(names.search(f"{stack.expression} {stack.function}"))

    return total(stacks, is_of_kind) > MOST * total(stacks)
