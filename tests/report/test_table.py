"""The final table: every accuracy beside its floors, within 80 columns."""

import pytest

from jaxcl.report import summary_table

SUMMARY = dict(
    data="emoji",
    method="simclr",
    linear_top1=0.675,
    floor_pixels_top1=0.596,
    floor_random_top1=0.58,
    knn_top1=0.641,
    floor_pixels_knn_top1=0.55,
    floor_random_knn_top1=0.521,
    view_retrieval_top1=0.478,
    floor_pixels_view_retrieval=0.14,
    floor_random_view_retrieval=0.069,
    chance_top1=0.228,
    loss_first=6.93147,
    loss_last=3.0214,
    steps=1900,
    images_per_second=4512.3,
    devices=8,
    negatives_per_anchor=5118.0,
    param_count=194208,
    wall_seconds=131.2,
    nonfinite_steps=0,
    bad_images=0,
    protocol=dict(
        data="split by code point", test_images=379, feature_layer="encoder output " * 9, k=20, backbone=None
    ),
)


def row(summary, name):
    return next(line for line in summary_table(summary).splitlines() if line.startswith(name))[len(name) :].split("%")


def test_every_accuracy_stands_beside_its_floors_and_chance_as_percent():
    assert [float(part) for part in row(SUMMARY, "linear probe")[:-1]] == [67.5, 59.6, 58.0, 22.8]
    assert [float(part) for part in row(SUMMARY, "kNN")[:-1]] == [64.1, 55.0, 52.1, 22.8]
    assert [float(part) for part in row(SUMMARY, "view retrieval")[:-1]] == [47.8, 14.0, 6.9, 0.3]


@pytest.mark.parametrize(
    "fact",
    ["6.931 → 3.021", "1,900", "4,512", "5,118", "194,208", "2 min 11 s", "feature layer encoder output", "kNN k 20"],
)
def test_the_table_has_the_figures_of_the_run_and_the_protocol(fact):
    assert fact in " ".join(summary_table(SUMMARY).split())


def test_a_long_run_says_its_device_days_and_a_short_one_does_not():
    protocol = {**SUMMARY["protocol"], "epochs": 200.0, "train_images": 1_281_167}
    long = {**SUMMARY, "protocol": protocol, "images_per_second": 4000.0, "devices": 8}
    assert f"{'device-days':<22}5.93" in summary_table(long)
    assert "device-days" not in summary_table(SUMMARY)


def test_the_verdict_says_how_far_above_the_floors_and_how_sure():
    text = " ".join(summary_table(SUMMARY).split())
    assert "7.9 points above raw pixels and 9.5 points above a random encoder" in text
    assert "standard error 2.4 points on 379 test images" in text


def test_an_encoder_below_a_floor_is_called_below():
    text = " ".join(summary_table({**SUMMARY, "linear_top1": 0.59}).split())
    assert "0.6 points below raw pixels and 1.0 points above a random encoder" in text


def test_an_encoder_on_a_floor_is_level_with_it():
    text = " ".join(summary_table({**SUMMARY, "linear_top1": SUMMARY["floor_pixels_top1"]}).split())
    assert "linear probe is level with raw pixels" in text


def test_no_line_is_wider_than_eighty_columns(tmp_path):
    assert max(map(len, summary_table(SUMMARY).splitlines())) <= 80


def test_the_files_are_named_when_the_folder_is_known(tmp_path):
    table = summary_table(SUMMARY, tmp_path)
    assert str(tmp_path / "report.html") in table
    assert f"tensorboard --logdir {tmp_path}" in table


def test_what_was_not_measured_is_a_dash_and_retrieval_carries_the_verdict():
    table = summary_table({**SUMMARY, "linear_top1": None, "knn_top1": None, "chance_top1": None})
    line = next(line for line in table.splitlines() if line.startswith("linear probe"))
    assert line.split() == ["linear", "probe", "–", "59.6", "%", "58.0", "%", "–"]
    assert "The encoder's view retrieval is 33.8 points above raw pixels" in table


def test_an_empty_summary_is_still_a_table():
    assert "Nothing was scored beside its floors." in summary_table({})


RETRIEVAL = {
    f"{prefix}{name}": value + 0.01 * i
    for prefix, value in (("", 0.2), ("floor_colours_", 0.1), ("chance_", 0.0026))
    for i, name in enumerate(("image_to_text_top1", "image_to_text_top5", "text_to_image_top1", "text_to_image_top5"))
}


def test_retrieval_of_captions_stands_beside_colours_and_chance_where_there_are_captions():
    assert "image → text" not in summary_table(SUMMARY)
    assert [float(part) for part in row({**SUMMARY, **RETRIEVAL}, "image → text")[:-1]] == [20.0, 10.0, 0.3]
    assert [float(part) for part in row({**SUMMARY, **RETRIEVAL}, "text → image")[:-1]] == [22.0, 12.0, 2.3]
    text = " ".join(summary_table({**SUMMARY, **RETRIEVAL}).split())
    assert "Image → text is 10.0 points above a bag of colours and 19.7 points above chance." in text
    assert max(map(len, summary_table({**SUMMARY, **RETRIEVAL}).splitlines())) <= 80


def test_towers_that_are_not_finite_have_no_retrieval():
    table = summary_table({**SUMMARY, **RETRIEVAL, "image_to_text_top1": None})
    assert row({**SUMMARY, **RETRIEVAL, "image_to_text_top1": None}, "image → text")[0].split() == ["–", "10.0"]
    assert "Image → text is" not in table


def test_trouble_is_shown_only_where_there_was_some():
    assert "non-finite" not in summary_table(SUMMARY)
    table = summary_table({**SUMMARY, "nonfinite_steps": 3, "bad_images": 2})
    assert "3 (skipped)" in table
    assert "2 (replaced)" in table
    assert "(all: nothing was learned)" in summary_table({**SUMMARY, "nonfinite_steps": SUMMARY["steps"]})


@pytest.mark.parametrize(
    ("seconds", "shown"), [(9.4, "9 s"), (59.7, "1 min 0 s"), (131, "2 min 11 s"), (7260, "2 h 1 min")]
)
def test_time_is_written_for_people(seconds, shown):
    assert f"{'wall time':<22}{shown}\n" in summary_table({**SUMMARY, "wall_seconds": seconds})
