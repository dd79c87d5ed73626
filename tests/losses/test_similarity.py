"""The KL divergence of similarities against a loop, where its gradient is zero, and what memory it takes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import AS_USERS_COMPILE, FAST_COMPILE

from jaxcl.losses import similarity_kl
from jaxcl.mesh import make_mesh

N, DIM, SIZE, FILLED = 13, 5, 11, 7


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def the_arrays(rows=N, size=SIZE):
    """Embeddings of student and teacher, and a queue whose last rows are not numbers: nothing may read them."""
    return normal(0, rows, DIM), normal(1, rows, DIM), normal(2, size, DIM).at[FILLED:].set(jnp.nan)


def unit(x):
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def by_a_loop(student, teacher, earlier, temperature, teacher_temperature):
    """KL divergence and entropy of each anchor, in float64."""
    bank = unit(np.concatenate([teacher, earlier]))
    rows = []
    for s, t in zip(unit(student), unit(teacher), strict=True):
        p, q = (np.exp(bank @ x / t) for x, t in ((t, teacher_temperature), (s, temperature)))
        p, q = p / p.sum(), q / q.sum()
        rows.append((np.sum(p * np.log(p / q)), -np.sum(p * np.log(p))))
    return np.transpose(rows)


@functools.cache
def compiled(**settings):
    """The mean, what it is of, and its gradients, as one program."""

    def mean(student, teacher, queue, filled):
        out = similarity_kl(student, teacher, queue=queue, queue_filled=filled, **settings)
        return jnp.mean(out.loss), out

    gradient = jax.value_and_grad(mean, argnums=(0, 1, 2), has_aux=True)
    return jax.jit(gradient, compiler_options=FAST_COMPILE)


TEMPERATURES = dict(temperature=0.2, teacher_temperature=0.1)


@pytest.mark.parametrize("block_size", [None, 1, 6])
def test_the_divergence_is_that_of_a_loop_over_batch_and_filled_rows_whatever_the_strip(block_size):
    student, teacher, queue = the_arrays()
    (_, out), gradients = compiled(**TEMPERATURES, block_size=block_size)(student, teacher, queue, FILLED)
    loss, entropy = by_a_loop(student, teacher, queue[:FILLED], 0.2, 0.1)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(out.entropy, entropy, rtol=1e-5, atol=1e-6)
    assert all(row.any() for row in gradients[0])
    assert np.isfinite(gradients[0]).all()
    assert not any(gradient.any() for gradient in gradients[1:])


def test_the_gradient_is_that_of_the_loop():
    student, teacher, queue = the_arrays()
    _, (gradient, *_) = compiled(**TEMPERATURES, block_size=4)(student, teacher, queue, FILLED)
    direction, step = np.asarray(normal(5, N, DIM), np.float64), 1e-5
    ahead, behind = (
        by_a_loop(np.float64(student) + sign * step * direction, teacher, queue[:FILLED], 0.2, 0.1)[0].mean()
        for sign in (1, -1)
    )
    assert np.sum(gradient * direction) == pytest.approx((ahead - behind) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("filled", [0, SIZE])
def test_an_empty_queue_leaves_the_batch_and_a_full_one_adds_all_of_it(filled):
    student, teacher, _ = the_arrays()
    queue = normal(2, SIZE, DIM)
    (_, out), _ = compiled(**TEMPERATURES)(student, teacher, queue, filled)
    np.testing.assert_allclose(out.loss, by_a_loop(student, teacher, queue[:filled], 0.2, 0.1)[0], rtol=1e-5)
    if not filled:
        (_, without), _ = compiled(**TEMPERATURES)(student, teacher, None, None)
        np.testing.assert_allclose(out.loss, without.loss, rtol=1e-5)


def test_a_student_that_is_its_teacher_costs_nothing_at_one_temperature_and_something_at_two():
    _, teacher, queue = the_arrays()
    (same, _), (gradient, *_) = compiled(temperature=0.1, teacher_temperature=0.1)(teacher, teacher, queue, FILLED)
    assert float(same) == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    assert float(compiled(**TEMPERATURES)(teacher, teacher, queue, FILLED)[0][0]) > 0.1


def test_zero_vectors_and_temperature_001_are_finite():
    student, teacher, queue = (x.at[0].set(0) for x in the_arrays())
    settings = dict(temperature=0.01, teacher_temperature=0.01)
    (loss, out), gradients = compiled(**settings)(student, teacher, queue, FILLED)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((loss, out, gradients)))


def test_one_and_eight_devices_agree():
    student, teacher, queue = the_arrays(rows=24, size=16)
    (one, _), of_one = compiled(**TEMPERATURES)(student, teacher, queue, FILLED)
    (eight, _), of_eight = compiled(**TEMPERATURES, mesh=make_mesh(8), block_size=2)(student, teacher, queue, FILLED)
    assert float(eight) == pytest.approx(float(one), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), of_eight, of_one)


def test_temporary_memory_grows_linearly_in_the_number_of_anchors():
    def temporary(rows):
        embeddings = jax.ShapeDtypeStruct((rows, 16), jnp.float32)

        def loss(student, teacher):
            return jnp.mean(similarity_kl(student, teacher, **TEMPERATURES, block_size=64).loss)

        lowered = jax.jit(jax.grad(loss)).lower(embeddings, embeddings)
        return lowered.compile(compiler_options=AS_USERS_COMPILE).memory_analysis().temp_size_in_bytes

    small, large = temporary(1024), temporary(4096)
    assert large <= 4.2 * small
    assert large < 4096 * 4096 * 4 / 4


@pytest.mark.parametrize(
    ("shapes", "settings", "message"),
    [
        (((3, 2), (4, 2), (5, 2)), {}, r"student has shape \(3, 2\), must be that of teacher"),
        (((3, 2), (3, 2), (5, 3)), {}, r"queue has shape \(5, 3\), must be \[K, 2\]"),
        (((3, 2), (3, 2), (5, 2)), {"block_size": 0}, r"block_size=0 must be at least 1"),
    ],
)
def test_arrays_that_do_not_fit_are_named(shapes, settings, message):
    student, teacher, queue = map(jnp.ones, shapes)
    with pytest.raises(ValueError, match=message):
        similarity_kl(student, teacher, queue=queue, **TEMPERATURES, **settings)
