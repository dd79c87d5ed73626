"""A process of its own is asked, and answers or says why not."""

import pytest

from jaxcl.bench.apart import Failed, TimeUp, alone_on_device, ask


def a_module(tmp_path, text):
    (tmp_path / "an_answer.py").write_text(text)
    return dict(settings={"PYTHONPATH": str(tmp_path)})


def test_the_last_line_that_it_prints_is_the_answer(tmp_path):
    given = a_module(tmp_path, "import json, sys\nprint('so far')\nprint(json.dumps([json.load(sys.stdin), None]))")
    assert ask("an_answer", {"n": 3}, **given) == [{"n": 3}, None]


def test_it_has_the_settings_that_it_is_given(tmp_path):
    given = a_module(tmp_path, "import json, os\nprint(json.dumps(os.environ['JAX_COMPILATION_CACHE_DIR']))")
    given["settings"] |= alone_on_device("somewhere")
    assert ask("an_answer", None, **given) == "somewhere"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("import time\ntime.sleep(60)", TimeUp, "it took more than 0 s"),
        ("raise ValueError('no such thing')", Failed, "^ValueError: no such thing$"),
        ("raise SystemExit(3)", Failed, "^no output$"),
    ],
)
def test_an_error_says_why_there_is_no_answer(tmp_path, text, error, said):
    with pytest.raises(error, match=said):
        ask("an_answer", None, seconds=0.2 if error is TimeUp else None, **a_module(tmp_path, text))
