"""Processes that run one job together: how they join, agree and end. jax's distributed runtime joins and connects them.

Every process runs the same program. What could differ between them is decided by process 0 and told to all, through the
runtime's store of keys and texts: the devices take no part. The store has no passwords, so it holds JSON only.

Whatever ends one process ends all, with one line and one exit code. A process that is silent for three quarters of the
heartbeat ends all too, before the runtime itself would abort the others.
"""

from focalgeo.processes.cluster import (
    all_min,
    broadcast,
    check_equal,
    count,
    end,
    end_lost,
    index,
    is_first,
    lost,
    on_this_host,
    say,
    stop,
    write_line,
)
from focalgeo.processes.joining import FLAGS, asked, detected, join, launched

__all__ = [
    "FLAGS",
    "all_min",
    "asked",
    "broadcast",
    "check_equal",
    "count",
    "detected",
    "end",
    "end_lost",
    "index",
    "is_first",
    "join",
    "launched",
    "lost",
    "on_this_host",
    "say",
    "stop",
    "write_line",
]
