"""Makes commands.py and inputs.py importable: pytest imports tests by path, so this folder is not a package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
