"""Processes that run one job together: how they join, agree and end. jax's distributed runtime joins and connects them.

Every process runs the same program. What could differ between them is decided by process 0 and told to all, through the
runtime's store of keys and texts: the devices take no part. The store has no passwords, so it holds JSON only.

Whatever ends one process ends all, with one line and one exit code. A process that is silent for three quarters of the
heartbeat ends all too, before the runtime itself would abort the others.
"""

from focalgeo.processes.cluster import (
    count,
    end,
    end_lost,
    index,
    is_first,
    least,
    lost,
    on_this_host,
    same,
    stop,
    told,
)
from focalgeo.processes.joining import FLAGS, asked, detected, join

__all__ = [
    "FLAGS",
    "asked",
    "count",
    "detected",
    "end",
    "end_lost",
    "index",
    "is_first",
    "join",
    "least",
    "lost",
    "on_this_host",
    "same",
    "stop",
    "told",
]
