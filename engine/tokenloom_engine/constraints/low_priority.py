"""The priority of threads that may wait for all others."""

from __future__ import annotations

import os
import sys
import threading

LOW_PRIORITY = 15
"""Niceness of threads whose work nobody's next token waits for. A core that the model computes on
gives them a thirtieth of its time, and what it does not need."""


def lower_priority() -> None:
    """Let all other threads go before this one, where the system can do that for a thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Who was started with less may not take more.
        niceness = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
