"""A step whose queue waits on the host is the step whose queue does not."""

import jax
import numpy as np
import pytest
from hosted_runs import a_run, same

STEPS = 4  # 40 rows pushed to a queue of 24: it is part-filled, full, and turns


def close(a, b, tolerance=1e-5):
    def one(x, y):
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(initial=0), 1e-2))

    jax.tree.map(one, a, b)


def whole(queue):
    """The rows of a queue on the host as those of one on the device."""
    return np.concatenate([np.asarray(block) for block in queue.values])[: queue.groups.shape[0]]


@pytest.mark.parametrize(
    ("method", "devices", "top_k", "rows"),
    [
        ("simclr", 1, 5, 7),
        ("simclr", 1, None, 7),
        ("moco_v2", 1, 5, 12),
        ("supcon", 1, None, 24),
        ("simclr", 2, 5, 8),
        ("moco_v2", 2, None, 8),
    ],
)
def test_loss_gradient_and_queue_are_those_of_a_queue_on_the_device(method, devices, top_k, rows):
    given = dict(method=method, devices=devices, queue=24, top_k=top_k)
    there, here = a_run(rows=rows, **given), a_run(**given)
    state, expected = there.first(), here.first()
    for number in range(STEPS):
        state, metrics = there.steps(state, number, number + 1)
        expected, wanted = here.steps(expected, number, number + 1)
        assert metrics.keys() == wanted.keys()
        close(metrics, wanted)
        close(state._replace(queue=None), expected._replace(queue=None))
        close(whole(state.queue), expected.queue.values)
        same(state.queue[1:], expected.queue[1:])
