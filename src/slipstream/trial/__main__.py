"""Entry point of the trial's process. Python gets it as a file, so that every stack frame below the script's is
recognisable as slipstream's."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # Python put this directory there, where it could shadow modules of the script or of slipstream

from slipstream.trial.main import main

main(sys.argv[1])
