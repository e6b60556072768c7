"""Run the command line with `python -m slipstream`."""

from slipstream.cli import main

main()
