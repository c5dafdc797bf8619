"""Masks by a compiled loop: the numbers and the state of torch's own generator."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from onward.runtime import llvm
from onward.torch.ortmodule import twister

MANY = twister._WORTH_IT
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def drawn_by_torch(count: int, keep: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype).bernoulli_(keep).div_(keep)


def drawn_by_us(count: int, keep: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    noise = torch.empty(count, dtype=dtype)
    twister.draw_mask(noise, keep)
    return noise


# The first numbers after a seed, those of an odd and of an even place; whole blocks of 624 words and parts of one.
@pytest.mark.parametrize("before", [0, 1, 2, 623, 624, 625])
@pytest.mark.parametrize("count", [MANY, MANY + 1, 312 * 8, 100_003])
def test_it_draws_what_torch_draws(before: int, count: int) -> None:
    found, after = [], []
    for draw in (drawn_by_torch, drawn_by_us):
        torch.manual_seed(7)
        torch.rand(before)
        found.append(draw(count, 0.8))
        after.append(torch.get_rng_state())
    assert torch.equal(*found)
    assert torch.equal(*after)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("keep", [0.0009765625, 0.1, 0.5, 0.9, 1 - 2**-53])
def test_probabilities_and_types(dtype: torch.dtype, keep: float) -> None:
    torch.manual_seed(1)
    expected = drawn_by_torch(3 * MANY, keep, dtype)
    torch.manual_seed(1)
    assert torch.equal(drawn_by_us(3 * MANY, keep, dtype), expected)


def test_the_second_of_two_normal_numbers_is_still_there() -> None:
    torch.manual_seed(2)
    torch.randn(1)  # torch makes two at a time
    drawn_by_torch(MANY, 0.5)
    expected = torch.randn(3)
    torch.manual_seed(2)
    torch.randn(1)
    drawn_by_us(MANY, 0.5)
    assert torch.equal(torch.randn(3), expected)


def raw_words(state: torch.Tensor, count: int) -> np.ndarray:
    """What numpy's Mersenne Twister draws from a state of torch's."""
    words = state.numpy()
    left, key = int(words[8:12].view(np.int32)[0]), words[24 : 24 + 624 * 8].view(np.uint64).astype(np.uint32)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 625 - left}}
    return np.asarray(twister.random_raw(count))


@pytest.mark.parametrize("before", [0, 1, 200])
def test_the_loop_is_numpys_generator(before: int) -> None:
    """Whatever this processor's torch does."""
    generator, count, keep = torch.Generator().manual_seed(3), 5000, 0.3
    torch.rand(before, generator=generator)
    words = raw_words(generator.get_state(), 2 * count).reshape(-1, 2)
    fractions = ((words[:, 0] % 2**21) * 2.0**32 + words[:, 1]) * 2.0**-53
    noise = torch.empty(count)
    twister._draw(llvm.compiled(twister._source(4), "fill", 4), noise, keep, generator)
    np.testing.assert_array_equal(noise.numpy() > 0, fractions < keep)
    np.testing.assert_array_equal(raw_words(generator.get_state(), 4), raw_words_after(before, 2 * count, 4))


def raw_words_after(before: int, skipped: int, count: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(3)
    torch.rand(before, generator=generator)
    return raw_words(generator.get_state(), skipped + count)[skipped:]


def test_a_torch_that_draws_in_another_way_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on Intel's processors."""
    fill = llvm.compiled(twister._source(4), "fill", 4)
    original = torch.Tensor.bernoulli_

    def of_twice_as_many(self: torch.Tensor, p: float, *, generator: torch.Generator) -> torch.Tensor:
        torch.rand(1, generator=generator)
        return original(self, p, generator=generator)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "bernoulli_", of_twice_as_many)
        assert not twister._is_torchs(fill, 4)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "is_available", lambda: False)
    assert twister._fill.__wrapped__(4) is None


def test_what_another_thread_draws_meanwhile_is_not_drawn_again() -> None:
    """The loop starts again from where the other one left the generator."""
    generator = torch.Generator().manual_seed(4)
    reference = torch.Generator().manual_seed(4)
    fill, calls = llvm.compiled(twister._source(4), "fill", 4), []

    def disturbed(*arguments: int) -> None:
        if not calls:
            torch.rand(5, generator=generator)
        calls.append(arguments)
        fill(*arguments)

    noise = torch.empty(1000)
    twister._draw(disturbed, noise, 0.5, generator)
    assert len(calls) == 2
    torch.rand(5, generator=reference)
    expected = torch.empty(1000)
    twister._draw(fill, expected, 0.5, reference)
    assert torch.equal(noise, expected)
    assert torch.equal(generator.get_state(), reference.get_state())


def test_threads_draw_different_numbers() -> None:
    torch.manual_seed(5)
    masks = [torch.empty(MANY) for _ in range(40)]

    def work(own: list[torch.Tensor]) -> None:
        for mask in own:
            twister.draw_mask(mask, 0.5)

    threads = [threading.Thread(target=work, args=(masks[part::2],)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.manual_seed(5)
    expected = {tuple(drawn_by_torch(MANY, 0.5).tolist()) for _ in masks}
    assert {tuple(mask.tolist()) for mask in masks} == expected
