"""Other people's optimizers, as references for check_optimizer: torch's, and formulas transcribed to numpy."""

from __future__ import annotations

import numpy as np
import torch


def torch_optimizer(kind, *, before_step=None, groups=None, **options):
    """The parameters after each step of a torch optimizer.

    `before_step` gets the list of parameters after their gradients were set, to clip them. `groups` is a list of
    (names, options of torch); `lr_scale` among the options multiplies the rate of the step.
    """

    def reference(start, gradients, learning_rates):
        parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in start.items()}
        listed = groups or [(list(parameters), {})]
        torch_groups = [{"params": [parameters[name] for name in names], **own} for names, own in listed]
        optimizer = kind(torch_groups, lr=learning_rates[0], **options)
        for grads, lr in zip(gradients, learning_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
            for name, parameter in parameters.items():
                parameter.grad = torch.tensor(grads[name])
            if before_step is not None:
                before_step(list(parameters.values()))
            optimizer.step()
            yield {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}

    return reference


def formula(step):
    """A reference from ``(p, g, state, t, lr) -> p`` on one numpy array; `state` is a dict to keep things in."""

    def reference(start, gradients, learning_rates):
        parameters, states = dict(start), {name: {} for name in start}
        for t, (grads, lr) in enumerate(zip(gradients, learning_rates, strict=True), start=1):
            parameters = {name: step(p, grads[name], states[name], t, lr) for name, p in parameters.items()}
            yield parameters

    return reference


def moments(g, state, b1, b2):
    """Decayed averages of g and g²."""
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    return state["m"], state["v"]


def adamw_hf(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, bias_correction=True):
    """Hugging Face's and onnxruntime-training's AdamW."""

    def step(p, g, state, t, lr):
        m, v = moments(g, state, *betas)
        rate = lr * np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) if bias_correction else lr
        p = p - rate * m / (np.sqrt(v) + eps)
        return p - lr * weight_decay * p

    return formula(step)


def adam_of_onnxruntime(weight_decay, bias_correction, betas=(0.9, 0.999), eps=1e-8):
    """Mode 0 of com.microsoft.AdamOptimizer."""

    def step(p, g, state, t, lr):
        m, v = moments(g, state, *betas)
        first, second = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1, 1)
        return p - lr * (m / first / (np.sqrt(v / second) + eps) + weight_decay * p)

    return formula(step)


def lamb(
    betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, bias_correction=True, ratio_min=0.0, ratio_max=np.inf
):  # fmt: skip
    """com.microsoft.LambOptimizer, and the paper's algorithm 2 with phi the identity."""

    def step(p, g, state, t, lr):
        m, v = moments(g, state, *betas)
        first, second = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1, 1)
        d = weight_decay * p + m / first / (np.sqrt(v / second) + eps)
        p_norm, d_norm = np.linalg.norm(p), np.linalg.norm(d)
        ratio = np.clip(p_norm / d_norm, ratio_min, ratio_max) if p_norm and d_norm else 1.0
        return p - lr * ratio * d

    return formula(step)


def lion(betas=(0.9, 0.99), weight_decay=0.0):
    """Program 1 of the paper."""

    def step(p, g, state, t, lr):
        m = state.get("m", np.zeros_like(p))
        update = np.sign(betas[0] * m + (1 - betas[0]) * g)
        state["m"] = betas[1] * m + (1 - betas[1]) * g
        return p - lr * (update + weight_decay * p)

    return formula(step)
