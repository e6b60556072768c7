"""Text that cannot control a terminal: a session may come from somebody else, and a reason may contain what the script
printed."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Replaces control characters, characters that change the direction of reading, and lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co") else char for char in text)
