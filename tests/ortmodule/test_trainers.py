"""The examples in examples/pytorch: other libraries' training loops, on onnxruntime and in plain torch the same."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
EXAMPLES = Path(__file__).parents[2] / "examples" / "pytorch"
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}
# Torch rounds to eight bits on the way, and each step adds to that.
CLOSE_IN_BFLOAT16: dict[str, float] = {"rtol": 0.1, "atol": 0.05}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script; foreign libraries may warn, of what torch deprecates for instance, but nothing falls back."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    generators = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", FallbackWarning)
        yield importlib.import_module
    torch.set_rng_state(generators)
    forget_accelerators()


def forget_accelerators() -> None:
    """The first Accelerator of a process decides on the precision of all."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """The logits of what was saved, by plain torch."""
    plain = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    assert plain.config.architectures == ["BertForSequenceClassification"]
    return plain.state_dict()


def same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """All but the bias of attention's keys: its gradient is zero, and Adam makes steps of what rounding leaves."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        if not name.endswith("key.bias"):
            # Adam's steps are of one size, also where a gradient is almost lost in rounding.
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-3, atol=2e-4, msg=lambda text, n=name: f"{n}: {text}"
            )


def same(found: Any, expected: Any, close: dict[str, float] = CLOSE) -> None:
    torch.testing.assert_close(found, expected, **close)


def _by_trainer(example: ModuleType, folder: Path, **settings: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    trainer = example.train(folder.name, folder, **settings)
    assert trainer.model.config.num_labels == 2
    history = [line[key] for line in trainer.state.log_history for key in ("loss", "grad_norm") if key in line]
    history += [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    assert len(history) == 8 + 8 + 2
    trainer.save_model(str(folder / "best"))
    return history, loaded(folder / "best")


def test_hugging_face_trainer(example: Any, tmp_path: Path) -> None:
    """Losses, norms of gradients, evaluation, the best checkpoint; and training goes on from one."""
    script = example("with_trainer")
    found, weights = _by_trainer(script, tmp_path / "onnxruntime")
    expected, plain = _by_trainer(script, tmp_path / "torch")
    same(found, expected)
    same_weights(weights, plain)
    assert found[0] > found[14]  # it learns


@pytest.mark.slow
def test_hugging_face_trainer_goes_on(example: Any, tmp_path: Path) -> None:
    script = example("with_trainer")
    trainer = script.train("onnxruntime", tmp_path)
    last = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    first = sorted(tmp_path.glob("checkpoint-*"))[0]
    for parameter in trainer.model.parameters():
        parameter.data.zero_()
    trainer.train(resume_from_checkpoint=str(first))
    assert trainer.state.global_step == 8
    same_weights(dict(trainer.model.state_dict()), last)


@pytest.mark.parametrize("precision", ["no", pytest.param("bf16", marks=pytest.mark.slow)])
def test_accelerate(example: Any, tmp_path: Path, precision: str) -> None:
    script = example("with_accelerate")
    found, expected = (script.train(engine, tmp_path / engine, precision=precision) for engine in ENGINES)
    close = CLOSE if precision == "no" else CLOSE_IN_BFLOAT16
    same(found[0], expected[0], close)
    assert found[1] == expected[1] > 0.9
    if precision == "no":
        same_weights(loaded(tmp_path / "onnxruntime" / "bert"), loaded(tmp_path / "torch" / "bert"))


ENGINES = ("onnxruntime", "torch")


@pytest.mark.parametrize("precision", ["32-true", pytest.param("bf16-mixed", marks=pytest.mark.slow)])
def test_lightning(example: Any, tmp_path: Path, precision: str) -> None:
    pytest.importorskip("lightning")
    script = example("with_lightning")
    found, expected = (script.train(engine, tmp_path / engine, precision=precision) for engine in ENGINES)
    close = CLOSE if precision == "32-true" else CLOSE_IN_BFLOAT16
    same(found[0].losses, expected[0].losses, close)
    same(dict(found[1].callback_metrics), dict(expected[1].callback_metrics), close)
    paths = [trainer.checkpoint_callback.best_model_path for _, trainer in (found, expected)]
    saved = [torch.load(path, weights_only=True)["state_dict"] for path in paths]
    if precision == "32-true":
        same_weights(saved[0], saved[1])


@pytest.mark.slow
def test_hugging_face_trainer_in_bfloat16(example: Any, tmp_path: Path) -> None:
    script = example("with_trainer")
    found, expected = (_by_trainer(script, tmp_path / engine, bf16=True)[0] for engine in ENGINES)
    same(found, expected, CLOSE_IN_BFLOAT16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with_trainer", "with_accelerate", "with_lightning"])
def test_the_commands(name: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "classes by plain torch: [0, 1, 0, 1] of [0, 1, 0, 1]" in done.stdout
    assert "FallbackWarning" not in done.stderr


def test_it_passes_for_the_model(tmp_path: Path) -> None:
    """Libraries ask for the class, the configuration and `save_pretrained`; tied weights are saved once."""
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    module = ORTModule(transformers.BertForMaskedLM(config))
    assert isinstance(module, transformers.PreTrainedModel)
    assert isinstance(module, ORTModule)
    assert type(module) is ORTModule
    assert module.config is module.module.config
    assert module.dtype is torch.float32
    assert transformers.utils.generic.find_labels(module.__class__) == ["labels"]
    module.save_pretrained(tmp_path)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    same(again.state_dict(), module.state_dict())
    copied = copy.deepcopy(module)
    assert type(copied) is ORTModule
    assert copied.cls.predictions.decoder.weight is copied.bert.embeddings.word_embeddings.weight


def test_labels_of_causal_models_are_shifted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With label smoothing, Hugging Face's Trainer computes the loss itself, and tells such models by their name."""
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_FORCE_TORCH_FORWARD")  # which saves the export
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    net = transformers.GPT2LMHeadModel(config).eval()
    module = ORTModule(net)
    assert repr(module) == f"ORTModule({net!r})"
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to=[]
    )
    ids = torch.arange(12).reshape(2, 6)
    losses = []
    for model in (module, net):
        trainer = transformers.Trainer(model=model, args=arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            losses.append(trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()}))
    forget_accelerators()
    torch.testing.assert_close(*losses)


def test_accelerate_unwraps_it() -> None:
    """What accelerate wraps around `forward` comes off again, and not more."""
    accelerate = pytest.importorskip("accelerate")
    forget_accelerators()
    module = ORTModule(torch.nn.Linear(4, 4))
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    prepared = accelerator.prepare_model(module)
    x = torch.randn(3, 4)
    rounded = prepared(x)
    assert rounded.dtype is torch.float32  # accelerate casts it
    assert not torch.equal(rounded, module.module(x))
    unwrapped = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    torch.testing.assert_close(unwrapped(x), module.module(x))
    forget_accelerators()
    assert type(unwrapped(x).grad_fn).__name__ == "_ORTModuleFunctionBackward"
