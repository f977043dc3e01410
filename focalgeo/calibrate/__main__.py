"""Door 2: python -m focalgeo.calibrate --val=val.npz --test=test.npz --out=runs/mine."""

import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once; what is on disk is whole at any moment

from focalgeo.calibrate.flags import make_parser, parse
from focalgeo.types import InputError, RunError


def main(arguments: Sequence[str]) -> int:
    """Calibrate; returns the exit code: 0, 2 (bad input) or 3 (numbers beyond float32)."""
    if {"-h", "--help"} & set(arguments):
        print(make_parser().format_help())
        return 0
    try:
        options = parse(arguments)
        from focalgeo.calibrate import inputs  # after the flags, and jax after the files: an error is answered at once

        val, test = inputs.read(options)
        from focalgeo.calibrate import session

        session.run_and_print(options, val, test, command=["python", "-m", "focalgeo.calibrate", *arguments])
        return 0
    except (InputError, RunError) as error:
        print(f"focalgeo: {str(error).replace('--workdir', '--out')}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
