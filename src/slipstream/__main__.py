"""Run the command line with `python -m slipstream`."""

import os
import sys

if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
    # Python put the working directory there, where a file of the user could shadow a module that slipstream needs.
    # `slipstream` itself starts with this folder. The script gets its own.
    sys.path[0] = os.path.dirname(sys.executable)

from slipstream.cli import main

main()
