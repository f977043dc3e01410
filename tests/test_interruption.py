import signal

from focalgeo.job import interruption


def test_a_signal_is_held_back_once_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with interruption.deferred_signals() as stopped:
        assert stopped() is None
        signal.raise_signal(signal.SIGTERM)
        assert stopped() == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGTERM) is before
