"""The transformations that recipes are made of, with the names they have in optax.

Where moments are exponential averages, the stored slot is the plain decayed sum mu' = b mu' + g, and mu = (1 - b) mu':
see `Slot.scale`. Every read of a slot or of the parameter comes before its new value by data dependency, so that a
runtime may write the new value into the memory of the old.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.optim.base import Context, Slot, Transformation, Update
from onward.optim.norm import norm
from onward.optim.scalar import Number, Scalar, minimum, plus, sqrt, times


def scale(factor: float) -> Transformation:
    """factor g."""
    return Transformation(lambda op, g, ctx: g.times(factor), linear=True)


def scale_by_learning_rate() -> Transformation:
    """lr g."""
    return Transformation(lambda op, g, ctx: g.times(ctx.lr), linear=True)


def scale_by_decayed_learning_rate(decay: float) -> Transformation:
    """lr g / (1 + (t - 1) decay), the decay that torch builds into Adagrad."""
    return Transformation(lambda op, g, ctx: g.times(ctx.lr / (1 + (ctx.t - 1) * decay)), linear=True)


def add_decayed_weights(weight_decay: float = 0.0) -> Transformation:
    """g + weight_decay p.

    First in a chain this is L2 regularisation (torch's SGD and Adam); just before the learning rate it is decoupled
    weight decay (torch's AdamW).
    """
    require("weight_decay", weight_decay, weight_decay >= 0, "at least 0")

    def update(op: Builder, g: Update, ctx: Context) -> Update:
        return Update(g.direction, g.factor, g.decay + _decay(ctx, weight_decay))

    return Transformation(update, linear=True, decays=True)


def decay_after_update(weight_decay: float = 0.0) -> Transformation:
    """p' - lr weight_decay p' where p' = p - g: the last in a chain. As Hugging Face and onnxruntime-training."""
    require("weight_decay", weight_decay, weight_decay >= 0, "at least 0")

    def update(op: Builder, g: Update, ctx: Context) -> Update:
        rate = ctx.lr * _decay(ctx, weight_decay)
        # (1 - rate) (p - g) = p - ((1 - rate) g + rate p)
        kept = g.times(1 - rate)
        return Update(kept.direction, kept.factor, kept.decay + rate)

    return Transformation(update, linear=True, decays=True)


def trace(decay: float, *, dampening: float = 0.0, nesterov: bool = False) -> Transformation:
    """trace = decay trace + (1 - dampening) g, at the first step plain g; g + decay trace with `nesterov`. As torch."""
    require("momentum", decay, decay >= 0, "at least 0")

    def update(op: Builder, g: ir.Value, ctx: Context) -> ir.Value:
        # 0 at the first step, then 1
        later = minimum(ctx.t - 1, 1.0) if dampening else 0.0
        ctx.trace = ctx.trace * decay + times(g, 1 - dampening * later)
        return g + ctx.trace * decay if nesterov else ctx.trace

    return Transformation(update, {"trace": Slot()})


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    bias_correction: bool = True,
    corrected_eps: bool = True,
    amsgrad: bool = False,
    plain: bool = False,
) -> Transformation:
    """m^ / (sqrt(v^) + eps), m^ = m / (1 - b1^t), v^ = v / (1 - b2^t), m and v decayed averages of g and g².

    `corrected_eps=False` gives sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps): eps is not divided by the correction
    (Hugging Face, onnxruntime-training and ONNX; the first version in the paper's section 2). torch corrects it.
    `amsgrad` divides by the largest v so far. `plain` slots are m and v themselves, which costs two passes more: who
    reads and sets them by these names gets back the same bits.
    """
    _require_averages(b1=b1, b2=b2)
    mu_scale, nu_scale = (1.0, 1.0) if plain else (1 - b1, 1 - b2)
    root = math.sqrt(nu_scale)

    def update(op: Builder, g: ir.Value, ctx: Context) -> Update:
        first, second = _corrections(ctx, b1, b2) if bias_correction else (1.0, 1.0)
        mu = ctx.mu = ctx.mu * b1 + times(g, (1 - b1) / mu_scale)
        nu = ctx.nu = ctx.nu * b2 + times(g * g, (1 - b2) / nu_scale)
        if amsgrad:
            nu = ctx.nu_max = op.Max(ctx.nu_max, nu)
        # Everything is multiplied by sqrt(1 - b2^t) / root, so that nu needs no pass of its own.
        small = eps / root * (second if corrected_eps else 1.0)
        return Update(mu / plus(op.Sqrt(nu), small), mu_scale / root * second / first)

    nu = Slot(scale=nu_scale, squares=True)
    slots = {"mu": Slot(scale=mu_scale), "nu": nu}
    return Transformation(update, {**slots, "nu_max": nu} if amsgrad else slots)


def scale_by_adamax(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Transformation:
    """m^ / u, u = max(b2 u, |g| + eps), as torch's Adamax."""
    _require_averages(b1=b1, b2=b2)

    def update(op: Builder, g: ir.Value, ctx: Context) -> Update:
        mu = ctx.mu = ctx.mu * b1 + g
        ctx.nu = op.Max(ctx.nu * b2, plus(op.Abs(g), eps))
        return Update(mu / ctx.nu, (1 - b1) / (1 - b1**ctx.t))

    return Transformation(update, {"mu": Slot(scale=1 - b1), "nu": Slot()})


def scale_by_rss(initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> Transformation:
    """g / (sqrt(sum of all g² so far) + eps): Adagrad."""

    def update(op: Builder, g: ir.Value, ctx: Context) -> ir.Value:
        ctx.sum_of_squares = ctx.sum_of_squares + g * g
        return g / plus(op.Sqrt(ctx.sum_of_squares), eps)

    return Transformation(update, {"sum_of_squares": Slot(initial_accumulator_value, squares=True)})


def scale_by_rms(decay: float = 0.99, eps: float = 1e-8, *, centered: bool = False) -> Transformation:
    """g / (sqrt(v) + eps), v the decayed average of g², less the squared average of g when `centered`. As torch."""
    _require_averages(alpha=decay)
    unit = 1 - decay  # the scale of both slots
    root = math.sqrt(unit)

    def update(op: Builder, g: ir.Value, ctx: Context) -> Update:
        variance = ctx.nu = ctx.nu * decay + g * g
        if centered:
            mu = ctx.mu = ctx.mu * decay + g
            # A variance is not negative, but its rounding may be, where all gradients are alike.
            variance = op.Relu(variance - mu * mu * unit)
        return Update(g / plus(op.Sqrt(variance), eps / root), 1 / root)

    slots = {"nu": Slot(scale=unit, squares=True)}
    return Transformation(update, {**slots, "mu": Slot(scale=unit)} if centered else slots)


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> Transformation:
    """d = g sqrt(a + eps) / sqrt(v + eps), v and a the decayed averages of g² and of d²."""
    _require_averages(rho=rho)

    def update(op: Builder, g: ir.Value, ctx: Context) -> ir.Value:
        small = eps / (1 - rho)
        nu = ctx.nu = ctx.nu * rho + g * g
        delta = g * op.Sqrt((ctx.delta + small) / (nu + small))
        ctx.delta = ctx.delta * rho + delta * delta
        return delta

    return Transformation(update, {"nu": Slot(scale=1 - rho, squares=True), "delta": Slot(scale=1 - rho, squares=True)})


def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> Transformation:
    """sign(b1 m + (1 - b1) g); then m = b2 m + (1 - b2) g."""
    _require_averages(b1=b1, b2=b2)
    require("b2", b2, b2 > 0, "more than 0")

    def update(op: Builder, g: ir.Value, ctx: Context) -> ir.Value:
        # Divided by 1 - b1, which leaves the sign; and through `decayed` the old mu is read only once.
        decayed = ctx.mu * b2
        direction = op.Sign(decayed * (b1 * (1 - b2) / ((1 - b1) * b2)) + g)
        ctx.mu = decayed + g
        return direction

    return Transformation(update, {"mu": Slot(scale=1 - b2)})


def scale_by_trust_ratio(ratio_min: float = 0.0, ratio_max: float = math.inf) -> Transformation:
    """g |p| / |g|, the ratio within its bounds, and 1 where one of the norms is 0: LAMB and LARS."""

    def update(op: Builder, g: Update, ctx: Context) -> Update:
        g = g.without_decay(ctx.p)
        p_norm, g_norm = (norm(op, [x]) for x in (ctx.p, g.direction))
        return g.times(_trust_ratio(op, p_norm, g_norm * g.factor, ratio_min, ratio_max))

    return Transformation(update, elementwise=False, linear=True)


def _trust_ratio(op: Builder, p_norm: Number, g_norm: Number, lowest: float, highest: float) -> Scalar:
    assert isinstance(p_norm, Scalar)
    assert isinstance(g_norm, Scalar)
    ratio = (p_norm / g_norm).value
    if lowest > 0:
        ratio = op.Max(ratio, lowest)
    if highest < math.inf:
        ratio = op.Min(ratio, highest)
    both = op.And(op.Greater(p_norm.value, 0), op.Greater(g_norm.value, 0))
    return Scalar(op, op.Where(both, ratio, 1))


def _corrections(ctx: Context, b1: float, b2: float) -> tuple[Number, Number]:
    """1 - b1^t and sqrt(1 - b2^t)."""
    return 1 - b1**ctx.t, sqrt(1 - b2**ctx.t)


def _decay(ctx: Context, default: float) -> float:
    return default if ctx.weight_decay is None else ctx.weight_decay


def require(name: str, value: float, holds: bool, condition: str) -> None:
    """Refuse an option with a clear message."""
    if not holds:
        raise OnwardError(f"{name} must be {condition}, not {value}")


def _require_averages(**decays: float) -> None:
    for name, value in decays.items():
        require(name, value, 0 <= value < 1, "in [0, 1)")
