"""Makes the neighbouring module importable: tests are imported one by one, without a package around them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
