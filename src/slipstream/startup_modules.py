"""The modules that were imported when `slipstream` was, as under plain Python. `slipstream` imports this file first."""

import sys

STARTUP_MODULES = frozenset(sys.modules)
