import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo.curvature import dense_hessian, hvp, lambda_max, restrict
from focalgeo.types import InputError

ORACLE = MLP()


def loss(params):
    hidden = jnp.tanh(jnp.asarray(ORACLE.x) @ params["first"]["kernel"] + params["first"]["bias"][None])
    logits = hidden @ params["second"]["kernel"] + params["second"]["bias"][None]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(ORACLE.y)[:, None], axis=1))


@pytest.fixture
def params64():
    with jax.enable_x64(True):
        yield jax.tree.map(jnp.asarray, ORACLE.tree())


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("first/*",), ["first/bias", "first/kernel"]),
        (("*/bias",), ["first/bias", "second/bias"]),
        (("second/kernel", "first/bias"), ["first/bias", "second/kernel"]),
    ],
)
def test_is_a_block_of_the_whole_hessian(params64, patterns, names):
    restricted, kept = restrict(loss, params64, *patterns)
    assert sorted(kept) == names
    # ravel_pytree orders both trees by their sorted paths, so that the block's rows stand in one order
    marked = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, jax.tree_util.keystr(path, simple=True, separator="/") in names),
        params64,
    )
    inside = np.flatnonzero(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(marked)]))
    block = ORACLE.hessian()[np.ix_(inside, inside)]
    np.testing.assert_allclose(dense_hessian(restricted, kept), block, atol=1e-8)
    product = hvp(restricted, kept, kept)
    np.testing.assert_allclose(ravel_pytree(product)[0], block @ ravel_pytree(kept)[0], atol=1e-7)
    top = lambda_max(jax.jit(lambda v: hvp(restricted, kept, v)), kept, jax.random.key(0))
    np.testing.assert_allclose(top.value, np.linalg.eigvalsh(block)[-1], rtol=1e-4)


def test_leaves_the_value_alone(params64):
    restricted, kept = restrict(loss, params64, "second/*")
    assert restricted(kept) == loss(params64)


def test_what_matches_nothing_is_one_line(params64):
    with pytest.raises(InputError, match=r'no parameter matches "frist/kernel"; did you mean "first/kernel"\?'):
        restrict(loss, params64, "first/*", "frist/kernel")
    with pytest.raises(InputError, match="no pattern"):
        restrict(loss, params64)


def test_paths_that_collide_and_leaves_that_were_not_kept_are_refused():
    with pytest.raises(InputError, match=r"have: a/b; rename one"):
        restrict(lambda params: params["c"], {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(2), "c": jnp.ones(())}, "c")
    restricted, kept = restrict(lambda params: jnp.sum(params["a"]), {"a": jnp.ones(2), "b": jnp.ones(2)}, "a")
    assert float(restricted(kept)) == 2
    with pytest.raises(InputError, match=r'"b" is none of the leaves that were kept: a'):
        restricted({"b": jnp.zeros(2)})
