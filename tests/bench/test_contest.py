"""The table of methods: its runs, the choice of temperatures, and what is said of the figures."""

import json
from pathlib import Path

import pytest

from jaxcl.bench.contest import ALL, FIVE, ROWS, TEMPERATURES, choices, finals, order, pick
from jaxcl.bench.contest_table import as_json, contest_table, requirements
from jaxcl.bench.trials import choose, results, run_all
from jaxcl.config import ConfigError, load_config, resolve

DENSE, SAMPLED = "SimCLR, dense", "SimCLR, 5 % + sampled tail"
SIMCLR = pick(f"{DENSE};{ALL};{FIVE};{SAMPLED}")


def a_summary(trial, score):
    return {
        "linear_top1": score,
        "knn_top1": score - 0.02,
        "view_retrieval_top1": 0.2,
        "floor_pixels_top1": 0.84,
        "floor_random_top1": 0.85,
        "floor_pixels_knn_top1": 0.80,
        "floor_random_knn_top1": 0.81,
        "floor_pixels_view_retrieval": 0.04,
        "floor_random_view_retrieval": 0.03,
        "steps": 480,
        "images_per_second": 1000.0,
        "protocol": {"seed": trial.seed, "epochs": 4.0, "train_images": 60_000},
    }


class Trainer:
    """Stands for the trainings: writes what they would, and remembers who asked."""

    def __init__(self, score=lambda trial: 0.88, fails=()):
        self.asked, self.score, self.fails = [], score, fails

    def __call__(self, trial):
        self.asked.append(trial)
        if trial.contestant in self.fails:
            raise ConfigError("it ended with 2: error: nothing works")
        trial.folder.mkdir(parents=True)
        (trial.folder / "summary.json").write_text(json.dumps(a_summary(trial, self.score(trial))))


def best_at(temperature):
    return lambda trial: 0.9 if trial.temperature == temperature else 0.87


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_run_of_the_table_has_valid_settings(row, tmp_path):
    temperature = row.temperatures[0] if row.temperatures else None
    for trial in [*choices(row, tmp_path), *finals(row, tmp_path, temperature, (3,))]:
        config, *overrides = (item.removeprefix("--config").lstrip("=.") for item in trial.arguments)
        settings = resolve(load_config(config, overrides))
        assert settings.seed == trial.seed
        assert temperature is None or settings.loss.temperature == trial.temperature


def test_runs_with_other_settings_have_other_folders():
    trials = [trial for row in ROWS for trial in finals(row, Path("runs"), 0.2, (0, 1))]
    folders = [trial.folder for trial in trials]
    assert len(set(folders)) == len(folders)


def test_temperatures_are_chosen_on_training_images_that_are_held_out(tmp_path):
    row = pick(FIVE)[0]
    assert [trial.temperature for trial in choices(row, tmp_path)] == list(TEMPERATURES)
    assert all("--config.data.validation=0.1666" in " ".join(trial.arguments) for trial in choices(row, tmp_path))
    assert "validation" not in " ".join(finals(row, tmp_path, 0.2, (0,))[0].arguments)


def test_a_row_is_run_at_the_temperature_of_the_best_choice_and_dense_shares_that_of_all(tmp_path):
    trainer = Trainer(best_at(0.5))
    run_all(pick(f"{DENSE};{ALL}"), tmp_path, (0, 1), lambda _: None, trainer)
    assert [trial.temperature for trial in trainer.asked] == [*TEMPERATURES, 0.5, 0.5, 0.5, 0.5]
    assert [trial.seed for trial in trainer.asked[3:]] == [0, 0, 1, 1]


def test_nothing_is_chosen_before_every_candidate_has_run(tmp_path):
    row = pick(FIVE)[0]
    for trial in choices(row, tmp_path)[:2]:
        Trainer()(trial)
    assert choose(row, tmp_path) is None
    assert results(row, tmp_path, (0,)) == []


def test_what_has_ended_is_not_run_again(tmp_path):
    run_all(SIMCLR, tmp_path, (0,), lambda _: None, Trainer())
    again = Trainer()
    run_all(SIMCLR, tmp_path, (0,), lambda _: None, again)
    assert again.asked == []


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path):
    said = []
    run_all(pick("BYOL;SimSiam"), tmp_path, (0,), said.append, Trainer(fails=("BYOL",)))
    assert any("nothing works" in line for line in said)
    assert len(results(pick("SimSiam")[0], tmp_path, (0,))) == 1


def test_steps_of_a_sweep_run_with_the_first_seed_alone():
    seeds = [seed for row, seed in order(ROWS, (4, 5)) if row.once]
    assert set(seeds) == {4}


def test_the_table_shows_mean_and_deviation_over_seeds_and_the_floors(tmp_path):
    trainer = Trainer(lambda trial: [0.87, 0.88, 0.89][trial.seed])
    run_all(pick("BYOL"), tmp_path, (0, 1, 2), lambda _: None, trainer)
    found = {"BYOL": results(pick("BYOL")[0], tmp_path, (0, 1, 2))}
    table = contest_table(pick("BYOL"), found)
    assert "| BYOL |  | 480 | 4.0 | 88.0 ± 1.0 | 86.0 ± 1.0 | 20.0 ± 0.0 | 3 |" in table
    assert "| *raw pixels* | | | | 84.0 ± 0.0 | 80.0 ± 0.0 | 4.0 ± 0.0 | 3 |" in table
    assert as_json(found)[1]["command"].startswith("python -m jaxcl.main --config=configs/byol.py --config.steps=")


def found_with(tmp_path, scores, seeds=(0, 1, 2)):
    def score(trial):
        return scores.get(trial.contestant, 0.88) + 0.001 * trial.seed

    run_all(SIMCLR, tmp_path, seeds, lambda _: None, Trainer(score))
    return {row.name: results(row, tmp_path, seeds) for row in SIMCLR}


def test_what_the_table_was_to_show_is_judged(tmp_path):
    lines = requirements(found_with(tmp_path, {}))
    assert [line.rsplit(": ", 1)[1] for line in lines] == ["met"] * 5


def test_what_it_does_not_show_is_said(tmp_path):
    lines = requirements(found_with(tmp_path, {ALL: 0.89, FIVE: 0.845}))
    verdicts = [line.rsplit(": ", 1)[1] for line in lines]
    assert verdicts[:3] == ["NOT MET", "NOT MET", "NOT MET"]
    assert verdicts[4].startswith(f"NOT MET by {FIVE} (linear probe)")
    assert "-4.50 points" in lines[1]


def test_a_step_of_the_sweep_below_a_floor_is_named_and_no_method_is_blamed(tmp_path):
    step = next(row for row in ROWS if row.once)
    run_all((step,), tmp_path, (0,), lambda _: None, Trainer(lambda _: 0.5))
    last = requirements(found_with(tmp_path, {}) | {step.name: results(step, tmp_path, (0,))})[-1]
    assert last.startswith("every method above both floors: met; of the sweep's steps below a floor: ")
    assert f"{step.name} (linear probe)" in last


def test_with_one_seed_the_noise_of_seeds_is_not_judged(tmp_path):
    lines = requirements(found_with(tmp_path, {}, seeds=(0,)))
    assert lines[0].endswith("not judged, it needs two seeds of both")


def test_an_unknown_row_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="no row 'SimSam'; did you mean 'SimSiam'"):
        pick("SimSam")
