"""Entry point of a trial that may have a fault planted in it. It does the same as the entry point of a race, and adds
the technique `planted` to the catalogue."""

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # Python put this directory there; the script and slipstream must find their own modules

import slipstream.techniques
from slipstream.seams import user_code
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.trial.forked import READY, ForkSafety, serve
from slipstream.trial.main import main

_HERE = os.path.abspath(__file__)
slipstream.techniques.__path__.append(os.path.join(os.path.dirname(_HERE), "techniques"))
user_code._is_user[_HERE] = False  # this file is outside the package, but not the user's

if sys.argv[1] == READY:
    main(serve(int(sys.argv[2])), apply_recipe, ForkSafety())
else:
    main(sys.argv[1], apply_recipe)
