"""One ride of `check` or `memory`, with a live line while it lasts."""

from __future__ import annotations

import msgspec

from slipstream.cli.forms import Forms, aside
from slipstream.records import Session
from slipstream.runner.supervise import Order, supervise


def ride(order: Order, forms: Forms) -> Session:
    """Raises RefusalError."""
    from slipstream.report.live import LiveLine

    with aside(forms.takes_stdout):
        session = supervise(order, None if forms.quiet else LiveLine())
    return msgspec.structs.replace(session, options=forms.options)
