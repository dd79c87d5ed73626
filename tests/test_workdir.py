import subprocess
import sys
from pathlib import Path

import pytest

from jaxcl import workdir
from jaxcl.config import ConfigError


def used(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "x").write_text("x")
    (path / "mine.txt").write_text("keep me")
    return path


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    claimed = workdir.claim(tmp_path / "a" / "b")
    assert claimed.path.is_dir()


def test_a_used_folder_is_refused_with_both_ways_out(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume to continue it or --overwrite to replace it"):
        workdir.claim(used(tmp_path / "run"))


def test_overwrite_deletes_what_a_run_wrote_and_nothing_else(tmp_path):
    path = used(tmp_path / "run")
    (path / "profile").mkdir()
    workdir.claim(path, overwrite=True)
    assert sorted(item.name for item in path.iterdir()) == [".lock", "mine.txt"]


def test_resume_leaves_everything_where_it_is(tmp_path):
    path = used(tmp_path / "run")
    workdir.claim(path, resume=True)
    assert (path / "checkpoints" / "x").exists()


def test_a_folder_of_somebody_elses_files_is_never_taken(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="holds files that are not of a run"):
            workdir.claim(tmp_path, overwrite=overwrite)


def test_resume_where_nothing_is_names_the_folder(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        workdir.claim(tmp_path / "typo", resume=True)


def test_resume_and_overwrite_together_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="contradict"):
        workdir.claim(tmp_path, resume=True, overwrite=True)


def test_a_path_below_a_file_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not writable"):
        workdir.claim(tmp_path / "file" / "run")


def test_a_second_process_learns_who_is_using_the_folder(tmp_path):
    claimed = workdir.claim(tmp_path / "run")
    code = f"from pathlib import Path; from jaxcl import workdir; workdir.claim(Path({str(claimed.path)!r}))"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "is in use by process" in second.stderr
    claimed.release()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_json_is_written_whole_and_never_with_nan(tmp_path):
    path = tmp_path / "x.json"
    workdir.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        workdir.write_json(path, {"a": float("nan")})
    assert workdir.read_json(path) == {"a": 1}


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{", b""])
def test_a_broken_json_file_is_named(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.json cannot be read"):
        workdir.read_json(tmp_path / "x.json")


def test_resume_names_every_setting_that_would_change_the_steps():
    saved = {"seed": 0, "steps": 5, "loss": {"temperature": 0.2, "top_k": None}, "data": {"workers": 0}}
    given = {"seed": 1, "steps": 9, "loss": {"temperature": 0.1, "top_k": None}, "data": {"workers": 2}}
    with pytest.raises(ConfigError, match=r"loss.temperature = 0.1 \(the run has 0.2\); seed = 1 \(the run has 0\)$"):
        workdir.check_unchanged(saved, given)


def test_resume_for_more_steps_or_with_other_workers_is_allowed():
    workdir.check_unchanged({"steps": 5, "data": {"workers": 0}}, {"steps": 9, "data": {"workers": 2}})


def test_resume_takes_images_from_host_or_disk_alike_and_from_the_device_not():
    images = lambda where: {"batch": {"images": where}}  # noqa: E731
    workdir.check_unchanged(images("host"), images("disk"))
    workdir.check_unchanged(images("disk"), images("host"))
    with pytest.raises(ConfigError, match=r"batch.images = 'device' \(the run has 'host'\)"):
        workdir.check_unchanged(images("host"), images("device"))


@pytest.mark.parametrize("group", ["model", "text"])
def test_resume_finds_weights_elsewhere_only_where_checksums_tell_whether_they_are_the_same(
    group, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)

    def settings(path, rank):
        return {group: {"pretrained": path}, "lora": {"rank": rank}}

    workdir.check_unchanged(settings("a.npz", 0), settings(str(tmp_path / "a.npz"), 0))
    workdir.check_unchanged(settings("/old/a.npz", 4), settings("/new/a.npz", 4))
    for before, after, rank in (("/old/a.npz", "/new/a.npz", 0), (None, "/new/a.npz", 4), ("/old/a.npz", None, 4)):
        with pytest.raises(ConfigError, match=rf"{group}.pretrained = .* \(the run has "):
            workdir.check_unchanged(settings(before, rank), settings(after, rank))


def test_a_lock_file_that_was_released_while_it_was_opened_is_not_taken_for_the_folder(tmp_path, monkeypatch):
    first = workdir.claim(tmp_path / "run")
    lock, opened = workdir._lock_file, []

    def slowly(path):
        opened.append(lock(path))
        if len(opened) == 1:  # between the opening and the locking, whoever had it went
            (path / ".lock").unlink()
        return opened[-1]

    first.release()
    monkeypatch.setattr(workdir, "_lock_file", slowly)
    claimed = workdir.claim(tmp_path / "run")
    assert len(opened) == 2
    assert "process" in (tmp_path / "run" / ".lock").read_text()
    claimed.release()


def test_a_file_is_kept_aside_under_the_first_free_number_and_overwrite_deletes_it(tmp_path):
    path = used(tmp_path / "run")
    for expected in ("metrics.jsonl.1", "metrics.jsonl.2"):
        (path / "metrics.jsonl").write_text("{}")
        assert workdir.keep_aside(path / "metrics.jsonl").name == expected
    workdir.claim(path, overwrite=True)
    assert sorted(item.name for item in path.iterdir()) == [".lock", "mine.txt"]
