"""Einsum."""

import numpy as np
import pytest

from onward.testing import check_vjp


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        # One operand.
        ("ij->ij", [(2, 3)]),
        ("ij->ji", [(2, 3)]),
        ("abc->cab", [(2, 3, 4)]),
        ("ij->i", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ijk->kj", [(2, 3, 4)]),
        ("ba", [(2, 3)]),
        # Diagonals and traces.
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->j", [(2, 2, 3)]),
        ("iji->ij", [(2, 3, 2)]),
        ("ijij->j", [(2, 3, 2, 3)]),
        # Two operands.
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("i,i->", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ij,k->", [(2, 3), (4,)]),
        ("ij,kj->k", [(2, 3), (4, 3)]),
        (",ij->ij", [(), (2, 3)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 2), (2, 2, 3, 2)]),
        ("bij, bjk -> bik", [(2, 2, 3), (2, 3, 2)]),
        ("aB,Bc->ac", [(2, 3), (3, 2)]),
        ("ii,ij->j", [(3, 3), (3, 2)]),
        # Three operands.
        ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 2)]),
        ("i,j,k->", [(2,), (3,), (2,)]),
        ("bi,io,bo->b", [(2, 3), (3, 2), (2, 2)]),
        # Dots.
        ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 2)]),
        ("...ij,...jk", [(2, 2, 3), (2, 3, 2)]),
        ("...ij,...jk->...ik", [(1, 2, 3), (2, 3, 2)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (1, 2, 3, 2)]),
        ("...ii,...i->...i", [(1, 3, 3), (2, 3)]),
        ("...i->...", [(2, 3, 2)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("i...,i->...", [(3, 2, 2), (3,)]),
        ("b...d,de->b...e", [(2, 2, 3), (3, 2)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = [array(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    check_vjp("Einsum", inputs, opset=12, equation=equation)
