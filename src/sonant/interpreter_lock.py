"""How long a thread may keep Python's lock while another waits for it.

Every call into torch gives the lock away, and a step makes hundreds of them. A thread beside it that only computes, as
one that submits a thousand requests, has the lock back at each of them for Python's usual five milliseconds: the first
step of 1,024 requests came 0.4 s after they did. So whoever owns a process that holds an engine asks for less. It is
for all of the process's threads, which is why an engine does not do it by itself.
"""

from __future__ import annotations

import sys

_SWITCH_S = 50e-6


def hand_over_soon() -> None:
    sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
