"""Entry point of a trial that may have a fault planted in it. It does the same as the entry point of a race, and adds the
technique `planted` to the catalogue."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
if sys.path and sys.path[0] == _HERE:
    del sys.path[0]  # Python put this directory there; the script and slipstream must find their own modules

import slipstream.techniques
from slipstream.seams import user_code

slipstream.techniques.__path__.append(os.path.join(_HERE, "techniques"))
user_code._is_user[os.path.abspath(__file__)] = False  # not the user's code, though it is outside the package

from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.trial.forked import READY, ForkSafety, serve
from slipstream.trial.main import main

if sys.argv[1] == READY:
    main(serve(int(sys.argv[2])), apply_recipe, ForkSafety())
else:
    main(sys.argv[1], apply_recipe)
