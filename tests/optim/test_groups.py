"""Parameter groups against torch's, and the pattern for biases and norms."""

import pytest
import torch

from onward import optim
from onward.errors import OnwardError, UnknownNameError
from onward.optim import Group
from onward.testing import check_optimizer
from tests.optim.references import torch_optimizer

NAMES = ("layer.weight", "layer.bias", "scale")  # those that check_optimizer uses


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.2}),
        ("sgd", torch.optim.SGD, {}),
        ("adam", torch.optim.Adam, {"weight_decay": 0.2}),
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.2}),
        ("adagrad", torch.optim.Adagrad, {"weight_decay": 0.2}),
    ],
    ids=str,
)
def test_equals_torch(name, kind, options):
    groups = [Group(r"\.bias$", weight_decay=0.0), Group(["scale"], lr_scale=0.1, weight_decay=0.5), Group("scale")]
    reference = torch_optimizer(
        kind,
        groups=[
            (["layer.weight"], {}),
            (["layer.bias"], {"weight_decay": 0.0}),
            (["scale"], {"lr_scale": 0.1, "weight_decay": 0.5}),
        ],
        **options,
    )
    check_optimizer(optim.get(name, learning_rate=0.05, groups=groups, **options), reference)


def test_first_group_counts():
    first, second = Group("bias", lr_scale=2.0), Group(["layer.bias", "scale"], lr_scale=3.0)
    optimizer = optim.sgd(groups=[first, second])
    assert optimizer.group_of("layer.bias") is first
    parts = optimizer.partition(NAMES)
    assert [(group.lr_scale, names) for group, names in parts.items()] == [
        (1.0, ["layer.weight"]),
        (2.0, ["layer.bias"]),
        (3.0, ["scale"]),
    ]


def test_names_that_do_not_exist_are_refused():
    optimizer = optim.sgd(groups=[Group(["layer.bais"]), Group("matches nothing")])
    with pytest.raises(UnknownNameError, match=r"lists 'layer.bais', which is not trained; there are 'layer.weight', "):
        optimizer.partition(NAMES)


def test_a_decay_that_would_be_ignored_is_refused():
    plain = optim.scale_by_learning_rate()
    with pytest.raises(OnwardError, match=r"weight_decay=0.1, but optimizer 'custom' has no weight decay"):
        optim.Optimizer(plain, groups=(Group("w", weight_decay=0.1),))
    optim.Optimizer(plain, groups=(Group("w", weight_decay=0.0),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group("("), r"'\(' is not a regular expression"),
        (lambda: Group("w", weight_decay=-1.0), "weight_decay of a group must be at least 0"),
        (lambda: Group("w", lr_scale=-1.0), "lr_scale of a group must be at least 0"),
    ],
)
def test_wrong_groups_are_refused(make, message):
    with pytest.raises(OnwardError, match=message):
        make()


DECAYED = """
    weight fc.weight conv1.weight embed.weight encoder.layer.0.attention.self.query.weight
    decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight normal_head.weight dense/kernel:0
    rnn.weight_ih_l0 subnet.weight
""".split()
NOT_DECAYED = """
    bias fc.bias rnn.bias_ih_l0 attention.q_bias dense/bias:0 norm1.weight encoder.layer.0.LayerNorm.weight
    layer_norm.weight bn1.weight features.0.bn.weight h.0.ln_1.weight ln_f.weight ln.weight batch_normalization/gamma:0
    batch_normalization/beta:0 model.norm.weight rmsnorm.scale block.ln2.weight
""".split()


@pytest.mark.parametrize("name", DECAYED)
def test_weights_decay(name):
    assert not optim.no_decay().has(name)


@pytest.mark.parametrize("name", NOT_DECAYED)
def test_biases_and_norms_do_not_decay(name):
    assert optim.adamw(groups=[optim.no_decay()]).group_of(name).weight_decay == 0
