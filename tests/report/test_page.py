"""report.html and summary.json: whole, escaped, and in need of no other file."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxcl.report import write_report, write_summary
from jaxcl.report.curves import curve

VOID = {"meta", "link", "br", "img", "input", "hr"}
METRICS = [
    dict(step=step, loss=None if step == 30 else 1 / step, learning_rate=1e-3, grad_norm=2.0, **extra)
    for step, extra in [(10, {}), (20, dict(knn_top1=0.4)), (30, {}), (40, dict(knn_top1=0.5))]
]
NASTY = "<script>alert(\"&')</script>"


class Structure(HTMLParser):
    """Checks that tags nest, and collects what is there."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    summary = dict(data=NASTY, method="simclr", linear_top1=0.675, floor_pixels_top1=0.596, floor_random_top1=0.58)
    summary |= dict(protocol={"test_images": 379, "k": 20, "note": NASTY}, wall_seconds=61, loss_last=None)
    write_report(workdir, summary, [*METRICS, {"step": 50, "loss": 0.1, NASTY: 1.0}], dict(name=NASTY, none=None))
    assert [path.name for path in workdir.iterdir()] == ["report.html"]
    return (workdir / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed(page):
    assert page.startswith("<!doctype html>")
    assert Structure(page).tags[:2] == ["html", "head"]


def test_the_result_stands_beside_its_floors(page):
    assert all(part in Structure(page).text for part in ("67.5 %", "59.6 %", "58.0 %", "raw pixels", "random encoder"))


def test_what_a_user_wrote_is_text_and_never_markup(page):
    structure = Structure(page)
    assert "script" not in structure.tags
    assert structure.text.count(NASTY) >= 3


def test_the_page_needs_no_other_file_and_no_network(page):
    assert "://" not in page
    assert "@import" not in page
    references = [value for name, value in Structure(page).attributes if name in ("src", "href", "xlink:href", "data")]
    assert all(value.startswith("#") for value in references)
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", page))


def test_every_metric_has_a_curve_and_the_config_is_folded(page):
    structure = Structure(page)
    assert structure.tags.count("svg") == 5
    assert structure.tags.count("details") == 2
    assert '"none": null' in structure.text


def test_a_run_without_metrics_still_gives_a_page(tmp_path):
    write_report(tmp_path, {}, [], {})
    assert "svg" not in Structure((tmp_path / "report.html").read_text()).tags


def test_a_curve_follows_the_page_into_dark_mode():
    image = curve(METRICS, ["loss"])
    assert "currentColor" in image
    assert "#000000" not in image


def test_a_curve_that_never_moves_is_drawn_in_proportion_to_its_value():
    drawn = curve([{"step": step, "skipped": 0.0} for step in range(1, 4)], ["skipped"])
    assert "−0.04" not in drawn
    assert "1.0" in drawn


def test_steps_are_whole_numbers_on_the_axis():
    drawn = curve([{"step": step, "loss": 1.0 / step} for step in (1, 2, 3)], ["loss"])
    assert "1.5" not in drawn.replace("M 1.5", "")[drawn.index("matplotlib.axis_1") : drawn.index("matplotlib.axis_2")]


def test_bytes_are_counted_in_units_that_can_be_read():
    rows = [{"step": step, "loss": 1.0, "resident_bytes": step * 10**9} for step in range(1, 9)]
    assert ">8 GB<" in curve(rows, ["resident_bytes"])
    assert "GB" not in curve(rows, ["loss", "resident_bytes"])


def test_a_metric_logged_only_now_and_then_is_one_connected_line():
    assert curve([dict(step=1, a=1.0), dict(step=2), dict(step=3, a=2.0)], ["a"]).count("\nL ") > curve(
        [dict(step=1, a=1.0), dict(step=2, a=None), dict(step=3, a=2.0)], ["a"]
    ).count("\nL ")


@pytest.mark.parametrize("rows", [[], [dict(step=1)], [dict(step=1, a=None)], [dict(step=1, a="text")]])
def test_a_metric_without_any_value_has_no_curve(rows):
    assert curve(rows, ["a"]) is None


def test_a_long_run_is_thinned_out():
    rows = [dict(step=step, a=float(step % 7)) for step in range(50_000)]
    assert len(curve(rows, ["a"])) < 200_000


def test_the_summary_comes_back_as_it_was_with_null_for_what_is_not_finite(tmp_path):
    summary = dict(a=np.float32(0.5), b=np.int64(3), c=None, d=float("nan"), e=dict(k=20, f=(1, 2.5)), g="x", h=True)
    write_summary(tmp_path, summary)
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == dict(a=0.5, b=3, c=None, d=None, e=dict(k=20, f=[1, 2.5]), g="x", h=True)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_summary(tmp_path, dict(a=1))
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_summary(tmp_path, dict(a=2))
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_reading_the_table_and_the_metrics_needs_no_jax():
    import subprocess
    import sys

    code = (
        "import sys, jaxcl.report; sys.exit(any(name in sys.modules for name in ('jax', 'matplotlib', 'tensorboardX')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
