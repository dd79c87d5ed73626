import signal
import subprocess
import sys

import pytest

from jaxcl.interrupt import Interrupt, Interrupted, stopping


def test_the_first_signal_is_only_noted():
    with Interrupt() as interrupt:
        assert interrupt.requested is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested == signal.SIGTERM


def test_the_second_signal_ends_the_process():
    code = (
        "import signal; from jaxcl.interrupt import Interrupt\n"
        "with Interrupt():\n    signal.raise_signal(signal.SIGTERM); signal.raise_signal(signal.SIGTERM)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == -15


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_exit_code_tells_the_signal():
    assert Interrupted("stopped", signal.SIGINT).code == 130
    assert Interrupted("stopped", signal.SIGTERM).code == 143


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_stops_at_once_raises_where_it_stands_and_leaves_the_handlers_as_they_were(signum):
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted, match="nothing was scored") as stop, stopping("nothing was scored"):
        signal.raise_signal(signum)
    assert stop.value.code == 128 + signum
    assert signal.getsignal(signum) is before
