"""Torch's random zeros and ones, by a compiled loop: the same numbers of the same generator, ten times faster.

Where torch has no library for it (MKL serves Intel's processors only), it asks its Mersenne Twister for 64 bits a
number, one number after the other; masks of Dropout take up to half of the step of a small transformer then. The
recurrence of the generator reaches back by hundreds of words, so a processor can compute many of them at once.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable

import torch

from onward.runtime import llvm

_WORTH_IT = 2048  # numbers; the state of the generator has to be copied, which takes as long as it takes torch for 500
_STATE_BYTES = 5056

# The words of the generator, x[i] = x[i - 227] ^ A(upper bit of x[i - 624], lower bits of x[i - 623]): as long as what
# it reaches back to is not what it writes, which is for up to 227 words.
_TWIST = """
    %after = add nuw nsw i64 %i, 1
    %word.at = getelementptr inbounds i32, ptr %words, i64 %i
    %after.at = getelementptr inbounds i32, ptr %words, i64 %after
    %far.at = getelementptr inbounds i32, ptr %far, i64 %i
    %word = load i32, ptr %word.at
    %following = load i32, ptr %after.at
    %distant = load i32, ptr %far.at
    %upper = and i32 %word, 2147483648
    %lower = and i32 %following, 2147483647
    %joined = or i32 %upper, %lower
    %shifted = lshr i32 %joined, 1
    %bit = and i32 %following, 1
    %all = sub i32 0, %bit
    %vector = and i32 %all, 2567483615
    %mixed = xor i32 %shifted, %vector
    %new = xor i32 %mixed, %distant
    store i32 %new, ptr %word.at
"""
_TEMPER = """
    %from.at = getelementptr inbounds i32, ptr %from, i64 %i
    %y = load i32, ptr %from.at
    %a = lshr i32 %y, 11
    %y.a = xor i32 %y, %a
    %b = shl i32 %y.a, 7
    %b.part = and i32 %b, 2636928640
    %y.b = xor i32 %y.a, %b.part
    %c = shl i32 %y.b, 15
    %c.part = and i32 %c, 4022730752
    %y.c = xor i32 %y.b, %c.part
    %d = lshr i32 %y.c, 18
    %y.d = xor i32 %y.c, %d
    %to.at = getelementptr inbounds i32, ptr %to, i64 %i
    store i32 %y.d, ptr %to.at
"""
# A number has the first word above the second one. Its lower 53 bits are the digits of a fraction.
_COMPARE = """
    %first = shl nuw i64 %i, 1
    %second = or i64 %first, 1
    %first.at = getelementptr inbounds i32, ptr %words, i64 %first
    %second.at = getelementptr inbounds i32, ptr %words, i64 %second
    %above = load i32, ptr %first.at
    %below = load i32, ptr %second.at
    %above.part = and i32 %above, 2097151
    %above.wide = zext i32 %above.part to i64
    %below.wide = zext i32 %below to i64
    %digits = shl i64 %above.wide, 32
    %number = or i64 %digits, %below.wide
    %is = icmp ult i64 %number, %limit
    %one = select i1 %is, {T} %kept, {T} 0
    %to.at = getelementptr inbounds {T}, ptr %to, i64 %i
    store {T} %one, ptr %to.at
"""
# torch's state: the seed, how many words are left and one more (32 bits), whether it is seeded, the place of the next
# word, and 624 words in 64 bits each.
_LOAD = """
    %wide.at = getelementptr inbounds i64, ptr %wide, i64 %i
    %word.wide = load i64, ptr %wide.at
    %word = trunc i64 %word.wide to i32
    %word.at = getelementptr inbounds i32, ptr %words, i64 %i
    store i32 %word, ptr %word.at
"""
_STORE = """
    %word.at = getelementptr inbounds i32, ptr %words, i64 %i
    %word = load i32, ptr %word.at
    %word.wide = zext i32 %word to i64
    %wide.at = getelementptr inbounds i64, ptr %wide, i64 %i
    store i64 %word.wide, ptr %wide.at
"""
# A block is what is left of the words; one of them may have to wait for the next block.
_FILL = """
define void @fill(i64 %n, ptr %state, ptr %limit.at, ptr %kept.at, ptr %to) {{
entry:
    %words = alloca [625 x i32], align 64
    %ready = alloca [626 x i32], align 64
    %limit = load i64, ptr %limit.at
    %kept = load {T}, ptr %kept.at
    %left.at = getelementptr i8, ptr %state, i64 8
    %place.at = getelementptr i8, ptr %state, i64 16
    %wide = getelementptr i8, ptr %state, i64 24
    %left = load i32, ptr %left.at
    %left.wide = zext i32 %left to i64
    %remaining = sub i64 %left.wide, 1
    call void @load(i64 624, ptr %wide, ptr %words)
    br label %block
block:
    %available = phi i64 [%remaining, %entry], [624, %again]
    %waiting = phi i64 [0, %entry], [%odd, %again]
    %done = phi i64 [0, %entry], [%done.now, %again]
    %todo = sub i64 %n, %done
    %todo.words = shl i64 %todo, 1
    %missing = sub i64 %todo.words, %waiting
    %enough = icmp ult i64 %missing, %available
    %taken = select i1 %enough, i64 %missing, i64 %available
    %place = sub i64 624, %available
    %from = getelementptr i32, ptr %words, i64 %place
    %behind = getelementptr i32, ptr %ready, i64 %waiting
    call void @temper(i64 %taken, ptr %from, ptr %behind)
    %count = add i64 %waiting, %taken
    %pairs = lshr i64 %count, 1
    %to.now = getelementptr {T}, ptr %to, i64 %done
    call void @compare(i64 %pairs, ptr %ready, i64 %limit, {T} %kept, ptr %to.now)
    %odd = and i64 %count, 1
    %last = shl i64 %pairs, 1
    %last.at = getelementptr i32, ptr %ready, i64 %last
    %last.word = load i32, ptr %last.at
    store i32 %last.word, ptr %ready
    %done.now = add i64 %done, %pairs
    %available.now = sub i64 %available, %taken
    %more = icmp slt i64 %done.now, %n
    br i1 %more, label %again, label %end
again:
    %w227 = getelementptr i32, ptr %words, i64 227
    %w397 = getelementptr i32, ptr %words, i64 397
    %w454 = getelementptr i32, ptr %words, i64 454
    %w624 = getelementptr i32, ptr %words, i64 624
    call void @twist(i64 227, ptr %words, ptr %w397)
    call void @twist(i64 227, ptr %w227, ptr %words)
    %around = load i32, ptr %words
    store i32 %around, ptr %w624
    call void @twist(i64 170, ptr %w454, ptr %w227)
    br label %block
end:
    call void @store(i64 624, ptr %words, ptr %wide)
    %available.part = trunc i64 %available.now to i32
    %left.now = add i32 %available.part, 1
    store i32 %left.now, ptr %left.at
    %place.now = sub i64 624, %available.now
    store i64 %place.now, ptr %place.at
    ret void
}}
"""

_drawing = threading.Lock()


def draw_mask(noise: torch.Tensor, keep: float) -> None:
    """Fill a contiguous tensor with 1 / keep, or 0 with probability 1 - keep, as torch would."""
    fill = _fill(noise.element_size()) if noise.numel() >= _WORTH_IT else None
    if fill is None:
        noise.bernoulli_(keep).div_(keep)
    else:
        _draw(fill, noise, keep, torch.default_generator)


def _draw(fill: Callable[..., None], noise: torch.Tensor, keep: float, generator: torch.Generator) -> None:
    limit, kept = _constants(keep, noise.dtype)
    with _drawing:
        while True:
            before = generator.get_state()
            state = before.clone()
            fill(noise.numel(), state.data_ptr(), ctypes.addressof(limit), kept.data_ptr(), noise.data_ptr())
            if torch.equal(generator.get_state(), before):  # another thread may have drawn from it meanwhile
                generator.set_state(state)
                return


@functools.lru_cache(maxsize=256)
def _constants(keep: float, dtype: torch.dtype) -> tuple[ctypes.c_uint64, torch.Tensor]:
    """How many of the numbers of 53 bits are ones, and what a one is."""
    return ctypes.c_uint64(math.ceil(math.ldexp(keep, 53))), torch.ones((), dtype=dtype).div_(keep)


@functools.cache
def _fill(width: int) -> Callable[..., None] | None:
    """The loop for elements of so many bytes, if it can be compiled and torch draws in the same way here."""
    if not llvm.is_available():
        return None
    fill = llvm.compiled(_source(width), "fill", 4)
    return fill if _is_torchs(fill, width) else None


def _source(width: int) -> str:
    kind = f"i{8 * width}"
    compare = _COMPARE.format(T=kind)
    return "".join(
        [
            llvm.loop("load", "ptr noalias %wide, ptr noalias %words", _LOAD),
            llvm.loop("store", "ptr noalias %words, ptr noalias %wide", _STORE),
            llvm.loop("twist", "ptr noalias %words, ptr noalias %far", _TWIST),
            llvm.loop("temper", "ptr noalias %from, ptr noalias %to", _TEMPER),
            llvm.loop("compare", f"ptr noalias %words, i64 %limit, {kind} %kept, ptr noalias %to", compare),
            _FILL.format(T=kind),
        ]
    )


def _is_torchs(fill: Callable[..., None], width: int) -> bool:
    """Whether torch draws the same numbers and leaves its generator in the same state, on this processor."""
    dtype, keep = {2: torch.float16, 4: torch.float32, 8: torch.float64}[width], 0.7
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    if ours.get_state().numel() != _STATE_BYTES:
        return False
    for before, count in ((0, 1), (1, 700), (2, 313)):
        found, expected = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
        for generator in (ours, theirs):
            torch.rand(before, generator=generator)
        expected.bernoulli_(keep, generator=theirs).div_(keep)
        _draw(fill, found, keep, ours)
        if not torch.equal(found, expected) or not torch.equal(ours.get_state(), theirs.get_state()):
            return False
    return True
