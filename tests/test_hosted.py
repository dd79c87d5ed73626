"""A step whose optimizer waits on the host is, bit by bit, the step whose optimizer does not."""

import jax
import numpy as np
import pytest
from hosted_runs import a_batch, a_run, kinds, same

from jaxcl.checkpoint import Checkpoints
from jaxcl.integrity import first_non_finite
from jaxcl.optim import OPTIMIZERS

MORE = pytest.mark.slow(reason="half a minute: the same of every other optimizer")


@pytest.mark.parametrize(
    ("optimizer", "devices"), [*(pytest.param(name, 1, marks=MORE) for name in OPTIMIZERS), ("adamw", 2)]
)
def test_moments_on_the_host_change_no_bit(optimizer, devices):
    there, here = (a_run(optimizer, offload=offload, devices=devices) for offload in (True, False))
    assert (kinds(there.like.opt_state), kinds(here.like.opt_state)) == ({"pinned_host"}, {"device"})
    same(there.steps(there.first(), 0, 3), here.steps(here.first(), 0, 3))


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_goes_on_bitwise_from_a_checkpoint_of_either_kind(saved, tmp_path):
    before, after = (a_run("adamw", offload=offload) for offload in (saved, not saved))
    store = Checkpoints(tmp_path)
    state, _ = before.steps(before.first(), 0, 2)
    store.save(2, state, position={}, config={}, score=None)
    store.wait()
    restored, _ = store.restore(2, after.like)
    store.close()
    assert jax.tree.map(lambda x: x.sharding, restored) == after.shardings
    same(after.steps(restored, 2, 4), before.steps(before.first(), 0, 4))


def test_a_bad_step_leaves_the_moments_as_they_were():
    run = a_run("adamw", offload=True)
    state, _ = run.steps(run.first(), 0, 2)
    before = jax.device_get(state)
    poisoned = a_batch(7)
    poisoned["views"][-1] = np.nan
    state, metrics = run.step(state, poisoned)
    assert metrics["skipped"] == 1
    same(state._replace(step=0), before._replace(step=0))


def test_moments_are_on_a_device_during_the_update_alone():
    run, seen = a_run("adamw", offload=True), {}
    state, _ = run.steps(run.first(), 0, 1)
    shapes = {x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim}

    def held():
        """Arrays of these shapes on the device: parameters, gradient, and what else there is."""
        there = [x for x in jax.live_arrays() if x.sharding.memory_kind == "device" and x.shape in shapes]
        return len(there)

    def watched(name, program):
        def call(*given):
            seen[name] = held()
            return program(*given)

        return call

    before = held()
    run.step.programs, plain = (
        type(run.step.programs)(*map(watched, run.step.programs._fields, run.step.programs)),
        run.step.programs,
    )
    run.step(state, a_batch(1))
    run.step.programs = plain
    leaves = len(jax.tree.leaves(run.like.params))
    assert (seen["encode"], seen["loss"]) == (before, before)
    assert seen["replay"] == before + leaves  # the gradient
    assert seen["update"] == before + 3 * leaves  # and two moments


def test_no_program_but_the_update_is_handed_the_moments():
    run = a_run("adamw", offload=True)
    kernel = run.like.params["head"]["dense1"]["kernel"].shape
    for name, (program, given) in run.step.lowerable(a_batch(0)).items():
        leaves = jax.tree.leaves(given)
        # parameters, gradient, two moments
        assert sum(x.shape == kernel for x in leaves) == {"encode": 1, "loss": 0, "replay": 2, "update": 4}[name]
        size = program.lower(*given).compile().memory_analysis().argument_size_in_bytes
        assert size <= sum(x.size * x.dtype.itemsize for x in leaves)


def test_a_number_that_is_not_finite_is_found_where_it_waits():
    run = a_run("adamw", offload=True)
    state = run.first()
    assert first_non_finite(state) is None
    broken = jax.tree.map(lambda x: jax.device_put(np.full(x.shape, np.nan, np.float32), x.sharding), state.opt_state)
    assert "opt_state" in first_non_finite(state._replace(opt_state=broken))
