"""Random nodes of every operator whose output size is arithmetic, for comparing inferred sizes with onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Draw = Callable[[np.random.Generator], "Sized"]
DRAWS: dict[str, Draw] = {}


@dataclass
class Sized:
    """A node, its inputs (those in `fed` are data, the others constants), and the opset."""

    op_type: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 20
    fed: tuple[int, ...] = (0,)

    def model(self, *, symbolic: bool) -> onnx.ModelProto:
        """A model of this node, followed by a Relu of its first output where that is a float."""
        names = ["" if x is None else f"i{index}" for index, x in enumerate(self.inputs)]
        given, constants = [], []
        for index, x in enumerate(self.inputs):
            if x is None:
                continue
            if index in self.fed:
                dims = [f"{names[index]}_{axis}" if symbolic else size for axis, size in enumerate(x.shape)]
                kind = helper.np_dtype_to_tensor_dtype(x.dtype)
                given.append(helper.make_tensor_value_info(names[index], kind, dims))
            else:
                constants.append(numpy_helper.from_array(x, names[index]))
        outputs = [f"o{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op_type, names, outputs, **self.attributes)
        # Without a type: that of outputs is inferred too.
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], self.op_type, given, ends, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def feeds(self) -> dict[str, np.ndarray]:
        """What to run it with."""
        pairs = enumerate(self.inputs)
        return {f"i{index}": x for index, x in pairs if x is not None and index in self.fed}


def draws(name: str) -> Callable[[Draw], Draw]:
    def register(draw: Draw) -> Draw:
        DRAWS[name] = draw
        return draw

    return register


def _data(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, size=shape).astype(np.float32)


def _sizes(rng: np.random.Generator, count: int, low: int = 1, high: int = 13) -> list[int]:
    return [int(size) for size in rng.integers(low, high, size=count)]


def _chance(rng: np.random.Generator, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def _window(rng: np.random.Generator, n: int, *, kernel: list[int], conv: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if _chance(rng, 0.8):
        found["strides"] = _sizes(rng, n, 1, 5)
    if _chance(rng, 0.4):
        found["dilations"] = _sizes(rng, n, 1, 4)
    way = rng.integers(4)
    if way == 0:
        found["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]))
    elif way < 3:
        found["pads"] = [int(rng.integers(0, kernel[axis % n] + (2 if conv else 0))) for axis in range(2 * n)]
    return found


# Windows --------------------------------------------------------------------------------------------------------


def _pool(op_type: str) -> Draw:
    def draw(rng: np.random.Generator) -> Sized:
        n = int(rng.integers(1, 4))
        kernel = _sizes(rng, n, 1, 6)
        opset = int(rng.choice([7, 8, 10, 11, 12, 18, 19, 22]))
        attributes = {"kernel_shape": kernel, **_window(rng, n, kernel=kernel)}
        dilates = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op_type]
        if opset < dilates:
            attributes.pop("dilations", None)
        if _chance(rng) and opset >= (18 if op_type == "LpPool" else 10):
            attributes["ceil_mode"] = 1
        outputs = 2 if op_type == "MaxPool" and opset >= 8 and _chance(rng, 0.3) else 1
        return Sized(op_type, [_data(rng, 1, 2, *_sizes(rng, n))], attributes, opset=opset, outputs=outputs)

    return draw


for _name in ("MaxPool", "AveragePool", "LpPool"):
    DRAWS[_name] = _pool(_name)


@draws("Conv")
def conv(rng: np.random.Generator) -> Sized:
    n = int(rng.integers(1, 4))
    kernel = _sizes(rng, n, 1, 5)
    inputs = [_data(rng, 1, 2, *_sizes(rng, n)), _data(rng, 3, 2, *kernel)]
    return Sized("Conv", inputs, _window(rng, n, kernel=kernel, conv=True), opset=int(rng.choice([7, 11, 22])))


@draws("ConvTranspose")
def conv_transpose(rng: np.random.Generator) -> Sized:
    n = int(rng.integers(1, 4))
    kernel = _sizes(rng, n, 1, 5)
    attributes = _window(rng, n, kernel=kernel)
    strides = attributes.get("strides", [1] * n)
    if _chance(rng, 0.3):
        attributes["output_padding"] = [int(rng.integers(0, stride)) for stride in strides]
    if _chance(rng, 0.2):
        attributes.pop("pads", None)
        attributes["output_shape"] = _sizes(rng, n, 1, 20)
    inputs = [_data(rng, 1, 2, *_sizes(rng, n, 1, 8)), _data(rng, 2, 3, *kernel)]
    return Sized("ConvTranspose", inputs, attributes, opset=int(rng.choice([7, 11, 22])))


@draws("DeformConv")
def deform_conv(rng: np.random.Generator) -> Sized:
    kernel, size = _sizes(rng, 2, 1, 4), _sizes(rng, 2, 4, 9)
    attributes = _window(rng, 2, kernel=kernel)
    attributes.pop("auto_pad", None)
    steps, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0] * 4)
    out = [(size[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // steps[i] + 1 for i in range(2)]
    offset = _data(rng, 1, 2 * kernel[0] * kernel[1], *(max(side, 0) for side in out))
    return Sized("DeformConv", [_data(rng, 1, 2, *size), _data(rng, 3, 2, *kernel), offset], attributes, fed=(0, 2))


@draws("MaxUnpool")
def max_unpool(rng: np.random.Generator) -> Sized:
    kernel = _sizes(rng, 2, 1, 4)
    attributes = {"kernel_shape": kernel, **_window(rng, 2, kernel=kernel)}
    attributes.pop("dilations", None)
    attributes.pop("auto_pad", None)
    x = _data(rng, 1, 1, *_sizes(rng, 2, 1, 5))
    return Sized("MaxUnpool", [x, np.zeros(x.shape, np.int64)], attributes, fed=(0, 1))


@draws("Col2Im")
def col2im(rng: np.random.Generator) -> Sized:
    block, image = _sizes(rng, 2, 1, 4), _sizes(rng, 2, 4, 9)
    windows = int(np.prod([side - width + 1 for side, width in zip(image, block, strict=True)]))
    x = _data(rng, 1, 2 * int(np.prod(block)), windows)
    return Sized("Col2Im", [x, np.array(image), np.array(block)])


@draws("Attention")
def attention(rng: np.random.Generator) -> Sized:
    heads, group = _sizes(rng, 2, 1, 4)
    batch, queries, keys, past, width, value_width = _sizes(rng, 6, 1, 6)
    shapes = [(batch, heads * group, queries, width), (batch, heads, keys, width), (batch, heads, keys, value_width)]
    attributes: dict[str, Any] = {}
    if _chance(rng):
        shapes = [(batch, length, number * size) for batch, number, length, size in shapes]
        attributes = {"q_num_heads": heads * group, "kv_num_heads": heads}
    inputs: list[np.ndarray | None] = [_data(rng, *shape) for shape in shapes]
    if _chance(rng):
        inputs += [None, _data(rng, batch, heads, past, width), _data(rng, batch, heads, past, value_width)]
    outputs, opset = int(rng.choice([1, 3, 4])), int(rng.choice([23, 24]))
    return Sized("Attention", inputs, attributes, outputs=outputs, opset=opset, fed=(0, 1, 2, 4, 5))


# Resizing -------------------------------------------------------------------------------------------------------

_RATIOS = [1 / 3, 0.3, 0.5, 0.6, 2 / 3, 5 / 6, 0.7, 0.9, 1.0, 1.1, 7 / 6, 1.5, 5 / 3, 2.0, 2.3, 2.5]


def _scales(rng: np.random.Generator, sizes: list[int]) -> np.ndarray:
    """Ratios of small numbers, whose products in float32 are just beside whole ones."""
    found = []
    for size in sizes:
        way = rng.integers(3)
        ratio = rng.integers(1, 24) / size if way == 0 else rng.choice(_RATIOS) if way == 1 else rng.uniform(0.3, 3)
        found.append(ratio)
    return np.array(found, np.float32)


@draws("Resize")
def resize(rng: np.random.Generator) -> Sized:
    opset = int(rng.choice([11, 13, 18, 19]))
    n = int(rng.integers(1, 3))
    spatial = _sizes(rng, n)
    x = _data(rng, 1, 1, *spatial)
    attributes: dict[str, Any] = {"mode": str(rng.choice(["nearest", "linear"]))}
    modes = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize"]
    attributes["coordinate_transformation_mode"] = str(rng.choice(modes))
    roi: np.ndarray | None = np.array([], np.float32) if opset < 13 else None
    axes = list(range(n + 2))
    if opset >= 18 and _chance(rng):
        axes = [2 + axis for axis in range(n)]
        attributes["axes"] = axes if _chance(rng) else [axis - n - 2 for axis in axes]
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        cut = rng.uniform(0, 0.4, size=len(axes)) * (np.array(axes) >= 2)
        roi = np.concatenate([cut, 1 - cut]).astype(np.float32)
    if _chance(rng, 0.25):
        sizes = [1, 1, *_sizes(rng, n)]
        if opset >= 18:
            attributes["keep_aspect_ratio_policy"] = str(rng.choice(["stretch", "not_larger", "not_smaller"]))
        if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch" and len(axes) == n + 2:
            attributes["keep_aspect_ratio_policy"] = "stretch"
        empty = np.array([], np.float32) if opset < 13 else None
        return Sized("Resize", [x, roi, empty, np.array([sizes[axis] for axis in axes])], attributes, opset=opset)
    scales = np.ones(n + 2, np.float32)
    scales[2:] = _scales(rng, spatial)
    return Sized("Resize", [x, roi, scales[axes]], attributes, opset=opset)


@draws("Resize-10")
def resize_10(rng: np.random.Generator) -> Sized:
    spatial = _sizes(rng, 2)
    mode = str(rng.choice(["nearest", "linear"]))
    scales = np.array([1, 1, *_scales(rng, spatial)], np.float32)
    return Sized("Resize", [_data(rng, 1, 1, *spatial), scales], {"mode": mode}, opset=10)


@draws("Upsample")
def upsample(rng: np.random.Generator) -> Sized:
    spatial, opset = _sizes(rng, 2), int(rng.choice([7, 9]))
    scales = [1.0, 1.0, *(float(max(scale, 1)) for scale in _scales(rng, spatial))]
    mode = {"mode": str(rng.choice(["nearest", "linear"]))}
    if opset == 7:
        return Sized("Upsample", [_data(rng, 1, 1, *spatial)], {**mode, "scales": scales}, opset=7)
    return Sized("Upsample", [_data(rng, 1, 1, *spatial), np.array(scales, np.float32)], mode, opset=9)


# Sequences of numbers -------------------------------------------------------------------------------------------


@draws("Range")
def range_(rng: np.random.Generator) -> Sized:
    dtype = rng.choice([np.float32, np.float64, np.int64, np.int32])
    if dtype in (np.int64, np.int32):
        numbers = [int(rng.integers(-9, 9)), int(rng.integers(-9, 20)), int(rng.choice([-3, -2, -1, 1, 2, 3, 4]))]
    else:
        steps = [0.1, 0.2, 0.3, 1 / 3, 0.7, 1.0, 1.1, -0.1, -0.25]
        numbers = [rng.choice([0, 1, 0.1, -0.3]), rng.choice([1, 2, 0.7, 3.3, -1]), rng.choice(steps)]
    return Sized("Range", [np.array(number, dtype) for number in numbers], fed=())


@draws("Slice")
def slice_(rng: np.random.Generator) -> Sized:
    n = int(rng.integers(1, 4))
    count = int(rng.integers(1, n + 1))
    axes = rng.permutation(n)[:count]
    ends = [int(rng.choice([rng.integers(-9, 9), 2**62, -(2**62)])) for _ in range(count)]
    steps = rng.choice([-3, -2, -1, 1, 2, 3], size=count).astype(np.int64)
    starts = [int(rng.choice([rng.integers(-9, 9), 2**62, -(2**62)])) for _ in range(count)]
    inputs = [_data(rng, *_sizes(rng, n, 0, 7)), np.array(starts), np.array(ends), axes.astype(np.int64), steps]
    return Sized("Slice", inputs, opset=int(rng.choice([10, 11, 13])))


@draws("Pad")
def pad(rng: np.random.Generator) -> Sized:
    n = int(rng.integers(1, 4))
    pads = rng.integers(-2, 4, size=2 * n).astype(np.int64)
    mode = {"mode": str(rng.choice(["constant", "constant", "edge", "reflect"]))}
    return Sized("Pad", [_data(rng, *_sizes(rng, n, 4, 8)), pads], mode, opset=int(rng.choice([11, 13, 18])))


@draws("Split")
def split(rng: np.random.Generator) -> Sized:
    size, parts = int(rng.integers(1, 12)), int(rng.integers(1, 5))
    x = _data(rng, 2, size)
    way = rng.integers(3)
    if way == 0:
        return Sized("Split", [x], {"axis": 1, "num_outputs": parts}, outputs=parts, opset=18)
    if way == 1:
        return Sized("Split", [x], {"axis": -1}, outputs=parts, opset=13)
    cuts = np.sort(rng.integers(0, size + 1, size=parts - 1))
    lengths = np.diff([0, *cuts, size]).astype(np.int64)
    return Sized("Split", [x, lengths], {"axis": 1}, outputs=parts, opset=18)


@draws("Tile")
def tile(rng: np.random.Generator) -> Sized:
    return Sized("Tile", [_data(rng, *_sizes(rng, 2, 0, 4)), rng.integers(0, 4, size=2).astype(np.int64)])


@draws("Expand")
def expand(rng: np.random.Generator) -> Sized:
    shape = [int(size) for size in rng.choice([1, 3, 0], size=int(rng.integers(1, 4)), p=[0.5, 0.4, 0.1])]
    return Sized("Expand", [_data(rng, *rng.choice([1, 3], size=2)), np.array(shape, np.int64)])


@draws("Reshape")
def reshape(rng: np.random.Generator) -> Sized:
    targets = [[0, -1], [-1], [2, 0, -1], [6, 4, 1], [0, 0, 0], [-1, 0], [4, -1, 2], [0, 0, 2, 2]]
    target = targets[int(rng.integers(len(targets)))]
    return Sized("Reshape", [_data(rng, 2, 3, 4), np.array(target, np.int64)])


@draws("Flatten")
def flatten(rng: np.random.Generator) -> Sized:
    return Sized("Flatten", [_data(rng, 2, 3, 4)], {"axis": int(rng.integers(-3, 4))})


@draws("SpaceToDepth")
def space_to_depth(rng: np.random.Generator) -> Sized:
    return Sized("SpaceToDepth", [_data(rng, 1, 2, *_sizes(rng, 2))], {"blocksize": int(rng.integers(1, 4))})


@draws("DepthToSpace")
def depth_to_space(rng: np.random.Generator) -> Sized:
    return Sized("DepthToSpace", [_data(rng, 1, *_sizes(rng, 3))], {"blocksize": int(rng.integers(1, 3))})


@draws("STFT")
def stft(rng: np.random.Generator) -> Sized:
    length, frame, step = int(rng.integers(4, 40)), int(rng.integers(2, 12)), int(rng.integers(1, 7))
    window = None if _chance(rng) else _data(rng, frame)
    inputs = [_data(rng, 1, length, 1), np.array(step), window, np.array(frame)]
    return Sized("STFT", inputs, {} if _chance(rng, 0.3) else {"onesided": int(rng.integers(2))})


@draws("DFT")
def dft(rng: np.random.Generator) -> Sized:
    length = None if _chance(rng) else np.array(int(rng.integers(1, 12)))
    return Sized("DFT", [_data(rng, 1, int(rng.integers(1, 9)), 1), length], {"onesided": int(rng.integers(2))})


@draws("Window")
def window(rng: np.random.Generator) -> Sized:
    kind = str(rng.choice(["HannWindow", "HammingWindow", "BlackmanWindow"]))
    return Sized(kind, [np.array(int(rng.integers(1, 20)))], {"periodic": int(rng.integers(2))}, fed=())


@draws("MelWeightMatrix")
def mel(rng: np.random.Generator) -> Sized:
    numbers = [np.array(int(rng.integers(1, 8))), np.array(int(rng.integers(4, 33))), np.array(8000)]
    return Sized("MelWeightMatrix", [*numbers, np.array(0.0, np.float32), np.array(4000.0, np.float32)], fed=())


@draws("TopK")
def top_k(rng: np.random.Generator) -> Sized:
    return Sized("TopK", [_data(rng, 3, 5), np.array([int(rng.integers(0, 6))])], {"axis": -1}, outputs=2)


@draws("OneHot")
def one_hot(rng: np.random.Generator) -> Sized:
    depth = np.array(int(rng.integers(1, 6)))
    values = np.array([0, 1], np.float32)
    return Sized("OneHot", [rng.integers(0, 3, size=(2, 3)), depth, values], {"axis": int(rng.integers(-3, 3))})


@draws("CenterCropPad")
def center_crop_pad(rng: np.random.Generator) -> Sized:
    axes = [int(axis) for axis in rng.permutation(3)[:2]]
    return Sized("CenterCropPad", [_data(rng, *_sizes(rng, 3)), np.array(_sizes(rng, 2))], {"axes": axes})


@draws("RoiAlign")
def roi_align(rng: np.random.Generator) -> Sized:
    attributes = {"output_height": int(rng.integers(1, 4)), "output_width": int(rng.integers(1, 4))}
    rois = np.array([[0, 0, 3, 3], [1, 1, 4, 4]], np.float32)
    return Sized("RoiAlign", [_data(rng, 1, 2, 5, 5), rois, np.zeros(2, np.int64)], attributes, fed=(0, 1, 2))


@draws("MaxRoiPool")
def max_roi_pool(rng: np.random.Generator) -> Sized:
    rois = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 4, 4]], np.float32)
    return Sized("MaxRoiPool", [_data(rng, 1, 2, 5, 5), rois], {"pooled_shape": _sizes(rng, 2, 1, 4)}, fed=(0, 1))


@draws("GridSample")
def grid_sample(rng: np.random.Generator) -> Sized:
    return Sized("GridSample", [_data(rng, 1, 2, 4, 5), _data(rng, 1, *_sizes(rng, 2, 1, 5), 2)], fed=(0, 1))


@draws("AffineGrid")
def affine_grid(rng: np.random.Generator) -> Sized:
    n = int(rng.integers(2, 4))
    return Sized("AffineGrid", [_data(rng, 2, n, n + 1), np.array([2, 3, *_sizes(rng, n, 1, 5)])])


@draws("Gather")
def gather(rng: np.random.Generator) -> Sized:
    indices = rng.integers(0, 2, size=tuple(rng.integers(1, 4, size=int(rng.integers(0, 3)))))
    return Sized("Gather", [_data(rng, 2, 3, 4), np.array(indices, np.int64)], {"axis": int(rng.integers(-3, 3))})


@draws("GatherND")
def gather_nd(rng: np.random.Generator) -> Sized:
    depth = int(rng.integers(1, 3))
    return Sized("GatherND", [_data(rng, 2, 2, 4), rng.integers(0, 2, size=(2, 3, depth))], {"batch_dims": 1})


@draws("ConstantOfShape")
def constant_of_shape(rng: np.random.Generator) -> Sized:
    return Sized("ConstantOfShape", [np.array(_sizes(rng, int(rng.integers(0, 4)), 0, 4), np.int64)], fed=())


@draws("Concat")
def concat(rng: np.random.Generator) -> Sized:
    parts = [_data(rng, 2, int(rng.integers(0, 4)), 3) for _ in range(int(rng.integers(1, 4)))]
    return Sized("Concat", parts, {"axis": int(rng.choice([1, -2]))}, fed=tuple(range(len(parts))))


@draws("Einsum")
def einsum(rng: np.random.Generator) -> Sized:
    a, b, c = _sizes(rng, 3, 1, 4)
    equation = str(rng.choice(["ij,jk->ik", "ij,jk", "ij,jk->k", "ij,jk->ijk"]))
    return Sized("Einsum", [_data(rng, a, b), _data(rng, b, c)], {"equation": equation}, fed=(0, 1))


@draws("Reduce")
def reduce(rng: np.random.Generator) -> Sized:
    axes = np.array(rng.permutation(3)[: int(rng.integers(0, 4))], np.int64) - int(rng.choice([0, 3]))
    attributes = {"keepdims": int(rng.integers(2)), "noop_with_empty_axes": int(rng.integers(2))}
    return Sized(str(rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"])), [_data(rng, 2, 3, 4), axes], attributes)


@draws("Squeeze")
def squeeze(rng: np.random.Generator) -> Sized:
    axes = None if _chance(rng) else np.array([int(rng.choice([0, 2, -2]))])
    return Sized("Squeeze", [_data(rng, 1, 3, 1, 2), axes])


@draws("Unsqueeze")
def unsqueeze(rng: np.random.Generator) -> Sized:
    axes = np.array([0, int(rng.choice([2, -1]))])
    return Sized("Unsqueeze", [_data(rng, 2, 3), axes])
