"""Makes the module `command` importable. pytest imports the test modules one by one, without a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
