import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcl import queue as queues
from jaxcl.config import LossConfig, OptimConfig, QueueConfig
from jaxcl.mesh import make_mesh
from jaxcl.methods.base import Method, Objective
from jaxcl.optim import make_optimizer
from jaxcl.schedules import make_learning_rate, make_queue_length, make_temperature
from jaxcl.state import make_init_state, parameter_count, state_shardings
from jaxcl.step import make_train_step

DIM = 5


def toy_method(with_target=False):
    """Embeddings are the first pixels times a matrix; the loss pulls the views of each image together."""

    def init(key, views):
        del views
        return {"params": {"kernel": jax.random.normal(key, (DIM, DIM))}, "batch_stats": {"seen": jnp.zeros(())}}

    def embed(key, params, batch_stats, target, views, *, train):
        del key, target, train
        flat = views.reshape(*views.shape[:2], -1)[..., :DIM]
        return flat @ params["kernel"], {"seen": batch_stats["seen"] + 1}

    def objective(key, embeddings, ids, labels, *, queue, temperature):
        del labels
        loss = jnp.mean((embeddings[:, 0] - embeddings[:, 1]) ** 2)
        oldest = jnp.zeros(()) if queue is None else queue.groups[0]
        seen = {"size": jnp.mean(embeddings**2), "temperature": jnp.float32(temperature), "oldest": jnp.float32(oldest)}
        return Objective(loss, seen, embeddings[:, 0], ids)

    return Method(init, embed, objective, lambda *_: None, (lambda params: params) if with_target else None)


def a_batch(images=16, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "views": rng.normal(size=(images, 2, 1, DIM, 1)).astype(np.float32),
        "id": np.arange(images, dtype=np.int32) + images * seed,
        "label": np.full(images, -1, np.int32),
        "epoch": np.zeros(images, np.int32),
    }


def a_run(
    num_micro=1, target_decay=None, queue_size=24, steps=10, temperature=0.5, queue_length=None, sample=None, **optim
):
    method = toy_method(target_decay is not None)
    config = OptimConfig(
        **{"name": "sgd", "momentum": 0.0, "base_lr": 1.0, "warmup_steps": 2, "weight_decay": 0.0, **optim}
    )
    schedule = dict(batch_size=16, total_steps=steps)
    optimizer = make_optimizer(config, **schedule, num_micro=num_micro)
    rate = make_learning_rate(config, **schedule)
    init = make_init_state(
        method, optimizer, views_shape=(2, 2, 1, DIM, 1), queue_size=queue_size, queue_dim=DIM, queue_dtype="float32"
    )
    step = make_train_step(
        method,
        optimizer,
        lambda batch: batch["views"],
        num_micro=num_micro,
        learning_rate=rate,
        temperature=temperature if callable(temperature) else lambda *_: temperature,
        target_decay=lambda _: target_decay,
        queue_length=queue_length,
        queue_sample=sample,
    )
    return init(jax.random.key(0)), jax.jit(step), rate


def gradient(params, batch, rows):
    def loss(p):
        flat = batch["views"][rows].reshape(-1, 2, DIM) @ p["kernel"]
        return jnp.mean((flat[:, 0] - flat[:, 1]) ** 2)

    return jax.grad(loss)(params)


@pytest.mark.parametrize("num_micro", [1, 2, 4, 8])
def test_one_real_update_is_the_mean_gradient_of_its_micro_batches_at_the_rate_of_that_update(num_micro):
    state, step, rate = a_run(num_micro, clip_norm=None)
    for number in range(3):
        batch = a_batch(seed=number)
        grads = [gradient(state.params, batch, slice(j, None, num_micro)) for j in range(num_micro)]
        expected = state.params["kernel"] - rate(number) * sum(g["kernel"] for g in grads) / num_micro
        state, metrics = step(state, batch)
        np.testing.assert_allclose(state.params["kernel"], expected, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(metrics["learning_rate"], rate(number))


@pytest.mark.parametrize("num_micro", [1, 4])
def test_the_queue_receives_all_images_of_a_real_update_once_and_in_order(num_micro):
    state, step, _ = a_run(num_micro)
    state, _ = step(state, a_batch(seed=0))
    assert (int(state.queue.cursor), int(state.queue.filled)) == (16, 16)
    np.testing.assert_array_equal(state.queue.groups[:16], np.arange(16))
    state, metrics = step(state, a_batch(seed=1))
    assert (int(state.queue.cursor), int(state.queue.filled)) == (8, 24)
    np.testing.assert_array_equal(state.queue.groups, [*range(24, 32), *range(8, 24)])
    assert float(metrics["queue_fill"]) == 1.0


def test_pushed_rows_are_the_embeddings_that_the_loss_saw():
    state, step, _ = a_run()
    batch = a_batch()
    before = batch["views"][:, 0].reshape(16, DIM) @ state.params["kernel"]
    state, _ = step(state, batch)
    expected = before / np.linalg.norm(before, axis=1, keepdims=True)
    np.testing.assert_allclose(state.queue.values[:16], expected, rtol=1e-5)


def test_the_momentum_encoder_moves_once_a_real_update_after_it():
    state, step, _ = a_run(num_micro=4, target_decay=0.99, warmup_steps=0)
    first = np.asarray(state.params["kernel"])
    state, _ = step(state, a_batch())
    assert not np.allclose(state.params["kernel"], first)
    np.testing.assert_allclose(state.target["kernel"], 0.99 * first + 0.01 * state.params["kernel"], rtol=1e-6)


def test_a_momentum_encoder_that_nothing_would_move_is_an_error_when_the_step_is_made():
    constant = dict(learning_rate=lambda _: 0.1, temperature=lambda *_: 0.5)
    with pytest.raises(ValueError, match="target_decay=None"):
        make_train_step(toy_method(with_target=True), optax.sgd(0.1), lambda batch: batch, **constant)


@pytest.mark.parametrize("num_micro", [1, 4])
@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_a_step_with_one_bad_image_changes_nothing_but_the_count_of_steps(num_micro, name):
    state, step, _ = a_run(num_micro, target_decay=0.9, name=name, momentum=0.9)
    for number in range(2):
        state, _ = step(state, a_batch(seed=number))
    poisoned = a_batch(seed=2)
    poisoned["views"][2, 0, 0, 1] = np.nan
    after, metrics = step(state, poisoned)
    assert int(after.step) == int(state.step) + 1
    assert int(metrics["skipped"]) == 1
    jax.tree.map(np.testing.assert_array_equal, after._replace(step=state.step), state)
    going_on, metrics = step(after, a_batch(seed=3))
    without, _ = step(state, a_batch(seed=3))
    jax.tree.map(np.testing.assert_array_equal, going_on._replace(step=without.step), without)
    assert int(metrics["skipped"]) == 1


def test_batch_statistics_pass_through_every_micro_batch():
    state, step, _ = a_run(num_micro=4)
    state, _ = step(state, a_batch())
    assert float(state.batch_stats["seen"]) == 4


def test_one_micro_batch_needs_no_multi_steps():
    assert not isinstance(a_run(1)[0].opt_state, optax.MultiStepsState)
    assert isinstance(a_run(2)[0].opt_state, optax.MultiStepsState)


@pytest.mark.parametrize("num_micro", [1, 4])
def test_every_step_runs_the_same_program(num_micro):
    state, step, _ = a_run(num_micro)
    for number in range(3):
        state, _ = step(state, a_batch(seed=number))
    assert step._cache_size() == 1


@pytest.mark.parametrize("num_micro", [1, 4])
def test_schedules_are_at_their_end_in_the_last_step_and_count_real_updates_in_one_trace(num_micro):
    steps = 5
    temperature = make_temperature(
        LossConfig(temperature=0.5, temperature_end=0.1, temperature_schedule="cosine"), total_steps=steps
    )
    length = make_queue_length(QueueConfig(size=24, start=4, schedule="linear"), total_steps=steps)
    state, step, _ = a_run(num_micro, steps=steps, temperature=temperature, queue_length=length)
    seen, rows = [], []
    for number in range(steps):
        if number == 2:  # a bad step is not a real update: the next one has its temperature
            bad = a_batch(seed=9)
            bad["views"][0] = np.nan
            state, metrics = step(state, bad)
            again = float(metrics["temperature"])
        state, metrics = step(state, a_batch(seed=number))
        seen.append(float(metrics["temperature"]))
        rows.append((int(metrics["queue_rows"]), int(metrics["oldest"])))
    np.testing.assert_allclose(seen, [0.3 + 0.2 * np.cos(np.pi * t / 4) for t in range(5)], rtol=1e-5)
    assert seen[2] == again
    # 16 images a step: 4, 9, 14, 19 and 24 rows would count, up to the last image before this step
    assert rows == [(0, -1), (9, 7), (14, 18), (19, 29), (24, 40)]
    assert step._cache_size() == 1


def test_random_rows_of_the_queue_are_drawn_anew_at_each_step_and_the_same_in_each_run():
    def oldest():
        state, step, _ = a_run(queue_size=64, sample=3)
        values = [step(state := step(state, a_batch(seed=number))[0], a_batch(seed=number))[1] for number in range(6)]
        assert [int(metrics["queue_rows"]) for metrics in values] == [3] * 6
        return [int(metrics["oldest"]) for metrics in values]

    first = oldest()
    assert len(set(first)) > 3
    assert first == oldest()


def test_the_rule_of_the_queue_pointer_is_a_saw_tooth_that_knows_no_progress():
    config = LossConfig(temperature=0.2, temperature_end=1.0, temperature_schedule="queue_pointer")
    state, step, _ = a_run(temperature=make_temperature(config, total_steps=10))
    seen = []
    for number in range(6):
        state, metrics = step(state, a_batch(seed=number))
        seen.append(float(metrics["temperature"]))
    cursors = [0, 16, 8, 0, 16, 8]  # of 24
    np.testing.assert_allclose(seen, [0.2 + 0.8 * cursor / 24 for cursor in cursors], rtol=1e-6)
    assert step._cache_size() == 1


def test_queue_rows_are_split_over_data_and_large_parameters_over_model():
    mesh = make_mesh(4, 2)
    state, _, _ = a_run()
    state = state._replace(params={"kernel": jnp.zeros((64, 128)), "bias": jnp.zeros(128)})
    placed = state_shardings(state, mesh)
    assert tuple(placed.queue.values.spec) == ("data",)
    assert tuple(placed.queue.cursor.spec) == ()
    assert tuple(placed.params["kernel"].spec) == (None, "model")
    assert tuple(placed.params["bias"].spec) == ()


def test_a_state_without_queue_and_target_has_none():
    state, step, _ = a_run(queue_size=0)
    state, metrics = step(state, a_batch())
    assert state.queue is None
    assert state.target is None
    assert "queue_fill" not in metrics
    assert parameter_count(state.params) == DIM * DIM


def test_the_queue_of_the_first_state_is_empty():
    state, _, _ = a_run()
    assert isinstance(state.queue, queues.Queue)
    assert int(state.queue.filled) == 0
