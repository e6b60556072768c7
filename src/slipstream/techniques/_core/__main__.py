"""Entry point of a racing trial's process. Python gets the path of this file, so every frame below the script is
recognised as slipstream's. The module does the same as the entry point of `slipstream.trial`, but techniques are
available."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # Python put this directory there; the script and slipstream must find their own modules

from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.trial.forked import READY, ForkSafety, serve
from slipstream.trial.main import main

if sys.argv[1] == READY:
    main(serve(int(sys.argv[2])), apply_recipe, ForkSafety())
else:
    main(sys.argv[1], apply_recipe)
