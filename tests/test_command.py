import re
import sys

import pytest

from jaxcl.command import guarded
from jaxcl.config import ConfigError
from jaxcl.interrupt import Interrupted


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("steps = 0"), 2, "error: steps = 0"),
        (MemoryError("Unable to allocate 1.50 TiB"), 2, "error: out of memory: lower .* eval.batch .*1.50 TiB"),
        (MemoryError(), 2, "error: out of memory: .*MemoryError"),
        (Interrupted("stopped", 15), 143, "stopped"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_a_code(capsys, error, code, line):

    assert guarded(raising(error)) == code
    errors = capsys.readouterr().err
    assert re.match(line, errors)
    assert errors.count("\n") == 1


def test_the_threads_of_a_checkpoint_that_failed_are_silent_and_all_other_errors_are_not(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    guarded(lambda: None)
    for error in (RuntimeError("Event loop is closed"), RuntimeError("something else")):
        sys.excepthook(RuntimeError, error, None)
    assert capsys.readouterr().err == "RuntimeError: something else\n"
