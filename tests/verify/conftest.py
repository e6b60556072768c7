"""Makes the neighbouring module importable, because tests are imported one by one and not as a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
