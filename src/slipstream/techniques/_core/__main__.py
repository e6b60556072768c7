"""Where a racing rider's process begins, given to python as a file so that every frame below the script is known as
ours. As runner's, with techniques at hand."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # python put this directory there; the script must find its own modules, and we ours

from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.trial.forked import READY, ForkSafety, serve
from slipstream.trial.main import main

if sys.argv[1] == READY:
    main(serve(int(sys.argv[2])), apply_recipe, ForkSafety())
else:
    main(sys.argv[1], apply_recipe)
