"""Recognises the datasets of the library `datasets`, without importing it."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "datasets.arrow_dataset"


def is_hugging_face(dataset: Any) -> bool:
    """Whether the dataset is Hugging Face's own. The class itself is compared, because a package of the user's may be
    called `datasets` too."""
    return type(dataset) is getattr(sys.modules.get(_MODULE), "Dataset", None)
