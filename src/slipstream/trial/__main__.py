"""Entry point of the trial's process. Python runs this file by its path, so every stack frame below the script's first
frame belongs to a file of slipstream."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # Python put this directory there, where it could shadow modules of the script or of slipstream

from slipstream.trial.main import main

main(sys.argv[1])
