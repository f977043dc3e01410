"""What a job says while it runs."""

import sys


def say(what: str) -> None:
    """A line on standard error, where it does not mix with results."""
    print(what, file=sys.stderr, flush=True)
