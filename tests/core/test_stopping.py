"""A signal ends a program wherever it arrives."""

import gc
import os
import signal
import sys
import time

import pytest

from collapipe_jax.core.stopping import Terminated, terminable


def test_a_signal_in_a_callback_that_ignores_exceptions_ends_the_program():
    def send(phase, info):
        gc.callbacks.remove(send)
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):  # the handler runs here
            pass

    def work():
        with terminable():
            gc.callbacks.append(send)
            gc.collect(0)
            time.sleep(10.0)

    hook = sys.unraisablehook
    with pytest.raises(Terminated):
        work()
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
