"""Signals that ask a run to stop."""

import signal
import subprocess
import sys

import pytest

from focalgeo.job import interruption


@pytest.mark.parametrize("signum", interruption.SIGNALS)
def test_a_signal_is_held_back_once_and_the_handlers_come_back(signum):
    before = signal.getsignal(signum)
    with interruption.deferred_signals() as stopped:
        assert stopped() is None
        signal.raise_signal(signum)
        assert stopped() == signum
        assert signal.getsignal(signum) is before
    assert signal.getsignal(signum) is before


def test_a_hangup_stops_a_run_but_not_under_nohup():
    begin = "import signal; from focalgeo.job import interruption as i; i.stop_at_once(); "
    raised = "signal.raise_signal(signal.SIGHUP); print('goes on')"
    held = "\nwith i.deferred_signals() as stopped:\n signal.raise_signal(signal.SIGHUP); print(stopped())"
    for ignored in ([], ["nohup"]):
        for rest, code, out in ((raised, 129, ""), (held, 0, "1")):
            found = subprocess.run([*ignored, sys.executable, "-c", begin + rest], capture_output=True, text=True)
            if ignored:
                assert (found.returncode, found.stdout.strip()) == (0, "goes on" if rest == raised else "None")
            else:
                assert (found.returncode, found.stdout.strip()) == (code, out)
                assert code == 0 or "stopped; the same command goes on from what is saved" in found.stderr
