"""Where the rider's process begins, given to python as a file so that every frame below the script is known as ours."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # python put this directory there; the script must find its own modules, and we ours

from slipstream.trial.main import main

main(sys.argv[1])
