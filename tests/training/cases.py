"""Models that the forms and lowerings of training graphs are made for, and those that they have to leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

TYPES = {np.float32: "float", np.float64: "double", np.float16: "float16"}


@dataclass(frozen=True)
class Case:
    """A graph as text over inputs and parameters; elements are small integers and halves, so that many are equal."""

    name: str
    text: str
    inputs: dict[str, tuple[int, ...]]
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    output: str = "y"
    dtype: type = np.float32
    opset: int = 17
    settings: str = ""
    labels: dict[str, tuple[int, int]] = field(default_factory=dict)  # how many, below which
    layouts: tuple[str, ...] = ("static", "batch")
    since: tuple[int, int] = (1, 20)  # the first onnxruntime whose kernels compute the model itself

    def model(self) -> onnx.ModelProto:
        kind = TYPES[self.dtype]
        inputs = [f"{kind}[{', '.join(map(str, shape))}] {name}" for name, shape in self.inputs.items()]
        inputs += [f"int64[{count}] {name}" for name, (count, _) in self.labels.items()]
        outputs = ", ".join(f"{kind} {name}" for name in self.output.split())
        head = f'<ir_version: 8, opset_import: ["" : {self.opset}]>'
        settings = f"<{self.settings.replace('number', kind)}>" if self.settings else ""
        model = onnx.parser.parse_model(f"{head} g ({', '.join(inputs)}) => ({outputs}) {settings} {{ {self.text} }}")
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        for name, array in self._arrays(self.parameters).items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        labels = {name: random.integers(0, below, count) for name, (count, below) in self.labels.items()}
        return self._arrays(self.inputs) | labels

    def _arrays(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        random = np.random.default_rng(len(self.name))
        drawn = {name: random.integers(-4, 5, shape) / 4 for name, shape in shapes.items()}
        return {name: (abs(a) + 0.5 if name == "var" else a).astype(self.dtype) for name, a in drawn.items()}

    @property
    def wrt(self) -> list[str]:
        return [*self.inputs, *(name for name in self.parameters if name not in ("mean", "var"))]


# Attributes of pooling, and sizes of an image.
WINDOWS = {
    "tiles": ("kernel_shape=[2,3], strides=[2,3]", (4, 6)),
    "columns": ("kernel_shape=[3,1], strides=[3,1]", (6, 5)),
    "one pixel": ("kernel_shape=[1,1], strides=[1,1]", (3, 4)),
    "one window": ("kernel_shape=[3,4], strides=[3,4]", (3, 4)),
    "padded 6": ("kernel_shape=[3,3], strides=[3,3], pads=[1,1,1,1]", (6, 6)),
    "padded 9": ("kernel_shape=[3,3], strides=[3,3], pads=[1,1,1,1]", (9, 9)),
    "padded 10": ("kernel_shape=[5,5], strides=[5,5], pads=[1,1,1,1]", (10, 10)),
    "padded before": ("kernel_shape=[3,3], strides=[3,3], pads=[2,0,0,0]", (6, 6)),
    "padded after": ("kernel_shape=[3,3], strides=[3,3], pads=[0,0,0,2]", (6, 6)),
    "ceil": ("kernel_shape=[2,2], strides=[2,2], ceil_mode=1", (5, 6)),
    "ceil, tiles": ("kernel_shape=[2,2], strides=[2,2], ceil_mode=1", (4, 6)),
    "ceil, padded": ("kernel_shape=[3,3], strides=[3,3], ceil_mode=1, pads=[1,0,1,0]", (5, 6)),
    "same upper": ('kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_UPPER"', (5, 4)),
    "same lower": ('kernel_shape=[3,3], strides=[3,3], auto_pad="SAME_LOWER"', (5, 7)),
    "same, tiles": ('kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_LOWER"', (4, 4)),
    "valid": ('kernel_shape=[2,2], strides=[2,2], auto_pad="VALID"', (5, 4)),
    "overlap": ("kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]", (6, 5)),
    "gaps": ("kernel_shape=[2,2], strides=[3,3]", (6, 6)),
    "dilations": ("kernel_shape=[2,2], strides=[2,2], dilations=[2,1]", (6, 6)),
    "wide": ("kernel_shape=[2,2], strides=[2,2]", (4, 70)),
    "a rest": ("kernel_shape=[2,2], strides=[2,2]", (5, 7)),
    "a rest of columns": ("kernel_shape=[1,4], strides=[1,4]", (2, 11)),
}


def _maxima() -> Iterator[Case]:
    """Windows that tile an image, with and without padding, and those that do not."""
    for name, (attributes, sizes) in WINDOWS.items():
        text = f"c = Conv(x, w, b) a = Relu(c) p = MaxPool<{attributes}>(a) y = Tanh(p)"
        # onnxruntime 1.20 adds windows that lie in the padding; their maximum is the lowest number.
        since = (1, 21) if name == "ceil, padded" else (1, 20)
        yield Case(f"maxima, {name}", text, {"x": (2, 2, *sizes)}, {"w": (3, 2, 1, 1), "b": (3,)}, since=since)
    tiles = "MaxPool<kernel_shape=[2,2], strides=[2,2]>"
    images = {"x": (2, 2, 4, 6)}
    yield Case("maxima of an input", f"y = {tiles}(x)", images)
    for name, shape in {
        "pairs of channels": "0,2,8,6",
        "volumes of channels": "0,2,2,4,6",
        "more images": "-1,2,4,6",
    }.items():
        window = "2,2,2" if "volumes" in name else "2,2"
        text = f"""c = Conv(x, w, b) s = Constant<value = int64[{shape.count(",") + 1}] {{{shape}}}>() r = Reshape(c, s)
            p = MaxPool<kernel_shape=[{window}], strides=[{window}]>(r) y = Tanh(p)"""
        yield Case(f"maxima of {name}", text, images, {"w": (4, 2, 1, 1), "b": (4,)})
    yield Case("maxima, two readers", f"a = Relu(x) p = {tiles}(a) s = ReduceSum<keepdims=0>(a) y = Mul(p, s)", images)
    yield Case("maxima, also an output", f"a = Relu(x) y = {tiles}(a)", images, output="y a")
    yield Case("maxima, twice", f"a = {tiles}(x) b = {tiles}(x) y = Mul(a, b)", images)
    yield Case("maxima of maxima", f"a = {tiles}(x) b = Relu(a) y = MaxPool<kernel_shape=[2,1]>(b)", images)
    indexed = f"p, i = {tiles}(x) f = CastLike(i, x) y = Mul(p, f)"
    yield Case("maxima with indices", indexed, images)
    by_columns = (
        "p, i = MaxPool<kernel_shape=[2,2], strides=[2,2], storage_order=1>(x) f = CastLike(i, x) y = Mul(p, f)"
    )
    yield Case("maxima with indices by columns", by_columns, images)
    row = "a = Relu(x) p = MaxPool<kernel_shape=[3], strides=[3], pads=[1,1]>(a) y = Tanh(p)"
    yield Case("maxima of rows", row, {"x": (2, 3, 6)})
    for name, width in {"of rows, taken together": 60, "of rows of a prime number of windows": 74}.items():
        text = "a = Relu(x) p = MaxPool<kernel_shape=[2], strides=[2]>(a) y = Tanh(p)"
        yield Case(f"maxima {name}", text, {"x": (2, 3, width)})
    flat = "p = MaxPool<kernel_shape=[1,3], strides=[1,3]>(x) y = Tanh(p)"
    yield Case("maxima of single rows", flat, {"x": (2, 3, 4, 60)})
    whole = "p = MaxPool<kernel_shape=[50], strides=[50]>(x) y = Tanh(p)"
    yield Case("maxima of long windows", whole, {"x": (2, 3, 150)})
    thin = "p = MaxPool<kernel_shape=[2,1,2], strides=[2,1,2]>(x) y = Tanh(p)"
    yield Case("maxima of thin volumes", thin, {"x": (2, 3, 5, 2, 4)})
    cube = "p = MaxPool<kernel_shape=[2,2,2], strides=[2,2,2]>(x) y = Tanh(p)"
    yield Case("maxima of volumes", cube, {"x": (1, 2, 2, 4, 4)})
    for dtype in (np.float64, np.float16):
        yield Case(f"maxima, {dtype.__name__}", f"a = Relu(x) p = {tiles}(a) y = Tanh(p)", images, dtype=dtype)


def _means() -> Iterator[Case]:
    """The same windows; the standard has dilations of means since opset 19."""
    for name, (attributes, sizes) in WINDOWS.items():
        for padding in (0, 1):
            text = f"a = Tanh(x) p = AveragePool<{attributes}, count_include_pad={padding}>(a) y = Tanh(p)"
            opset = 19 if "dilations" in attributes else 17
            since = (1, 21) if name == "ceil, padded" else (1, 20)  # as for maxima
            yield Case(f"means, {name}, {padding}", text, {"x": (2, 3, *sizes)}, opset=opset, since=since)
    for name, width in {"together": 60, "a prime number": 74}.items():
        text = "p = AveragePool<kernel_shape=[2], strides=[2]>(x) y = Tanh(p)"
        yield Case(f"means of rows, {name}", text, {"x": (2, 3, width)})
    tiles = "p = AveragePool<kernel_shape=[2,3], strides=[2,3]>(x) y = Tanh(p)"
    yield Case("means, float16", tiles, {"x": (2, 2, 4, 6)}, dtype=np.float16)


def _convolutions() -> Iterator[Case]:
    for name, attributes, sizes in (
        ("pads", "pads=[1,0,1,1]", (5, 6)),
        ("stride", "pads=[1,1,1,0], strides=[2,1]", (5, 6)),
        ("dilations", "dilations=[2,3], strides=[1,2]", (5, 6)),
        ("same", 'auto_pad="SAME_LOWER"', (5, 6)),
        ("one pixel", "pads=[1,0,1,1]", (1, 1)),
        ("large", "pads=[1,1,1,1]", (12, 12)),
    ):
        text = f"c = Conv<group=3, {attributes}>(x, w, b) y = Tanh(c)"
        yield Case(f"depthwise, {name}", text, {"x": (2, 3, *sizes)}, {"w": (3, 1, 3, 2), "b": (3,)})
    grouped = "c = Conv<group=2, pads=[1,1,1,1]>(x, w) y = Tanh(c)"
    yield Case("groups", grouped, {"x": (2, 4, 5, 5)}, {"w": (6, 2, 3, 3)})
    for name, attributes, weight in (
        ("", "pads=[2,2,1,2]", (7, 1, 5, 5)),
        (", strides", "pads=[2,1,1,2], strides=[2,3]", (7, 1, 5, 4)),
        (", dilations", "pads=[3,3,3,3], dilations=[2,1]", (7, 1, 4, 5)),
        (", groups", "pads=[2,2,2,2], group=2", (12, 1, 5, 5)),
        (", depthwise", "pads=[2,2,2,2], group=3", (3, 1, 5, 5)),
    ):
        channels = int(attributes[-1]) if "group" in attributes else 1
        text = f"c = Conv<{attributes}>(x, w) y = Tanh(c)"
        yield Case(f"few channels{name}", text, {"x": (2, channels, 6, 7)}, {"w": weight})
    for name, attributes, sizes, weight in (
        ("", "pads=[1,1,1,1]", (5, 6), (4, 4, 3, 3)),
        (", uneven pads", "pads=[0,2,3,1]", (7, 6), (4, 5, 5, 4)),
        (", valid", "strides=[1,2]", (7, 8), (2, 5, 3, 3)),
        (", strides", "pads=[2,1,2,0], strides=[1,3]", (6, 9), (3, 4, 5, 3)),
        (", dilations", "pads=[3,2,1,3], dilations=[2,3], strides=[1,2]", (6, 9), (3, 4, 4, 3)),
        (", same", 'auto_pad="SAME_LOWER"', (5, 6), (4, 4, 4, 3)),
        (", one row", "pads=[2,2,2,2]", (1, 9), (3, 4, 5, 5)),
        (", padded far", "pads=[4,4,4,4]", (5, 6), (4, 4, 3, 3)),
    ):
        text = f"c = Conv<{attributes}>(x, w) y = Tanh(c)"
        yield Case(f"shifts{name}", text, {"x": (2, weight[1], *sizes)}, {"w": weight})
    for name, attributes in (
        ("", "pads=[1,1,1,1]"),
        (", strides", "strides=[1,2], output_padding=[0,1]"),
        (", dilations", "dilations=[2,2], strides=[1,2], output_padding=[0,1], pads=[0,1,0,0]"),
    ):
        text = f"c = ConvTranspose<{attributes}>(x, w) y = Tanh(c)"
        yield Case(f"shifts, transposed{name}", text, {"x": (2, 4, 5, 6)}, {"w": (4, 4, 3, 3)})
    few = "c = Conv(x, w) y = Tanh(c)"
    yield Case("fewer windows than filters", few, {"x": (2, 2, 3, 3)}, {"w": (6, 2, 2, 2)})
    larger = "c = ConvTranspose<strides=[2,2], output_padding=[1,0]>(x, w, b) y = Tanh(c)"
    yield Case("transposed", larger, {"x": (2, 3, 3, 4)}, {"w": (3, 2, 3, 2), "b": (2,)})
    shared = "a = Conv<pads=[1,1,1,1]>(x, w) r = Relu(a) c = Conv<pads=[1,1,1,1]>(r, w) y = Add(a, c)"
    yield Case("shared filters", shared, {"x": (2, 3, 5, 5)}, {"w": (3, 3, 3, 3)})
    bottleneck = """i = Conv(x, u) a = Conv(i, w1)
        n, m, v = BatchNormalization<training_mode=1, momentum=0.7>(a, scale, bias, mean, var)
        b = Clip(n, low, high)
        d = Conv<group=4, pads=[1,1,1,1]>(b, w2, b2) r = LeakyRelu<alpha=0.2>(d)
        e = Conv(r, w3, b3) f = Add(i, e) g = Conv(f, w4) h = Sub(g, f)
        k = Conv<group=3, pads=[1,1,1,1], strides=[2,2]>(h, w5) y = Tanh(k)"""
    shapes = {"u": (3, 2, 1, 1), "w1": (4, 3, 1, 1), "w2": (4, 1, 3, 3), "w3": (3, 4, 1, 1), "w4": (3, 3, 1, 1)}
    shapes |= {"w5": (3, 1, 3, 3), "b2": (4,), "b3": (3,)} | dict.fromkeys(("scale", "bias", "mean", "var"), (4,))
    bounds = "number low = {-0.3}, number high = {0.55}"  # not where numbers are: at a kink there are two gradients
    for name, output in (("", "y"), (", also an output", "y d f")):
        yield Case(f"channels first{name}", bottleneck, {"x": (3, 2, 4, 5)}, shapes, output, settings=bounds)
    # Images that others ask for the number of their elements, or for their type; d is used by its values, too.
    asked = bottleneck.replace("b = Clip", "low_a = CastLike(low, n) b = Clip").replace(
        "Clip(n, low,", "Clip(n, low_a,"
    )
    asked = asked.replace("y = Tanh(k)", "c = Size(a) o = CastLike(c, e) q = Div(k, o) z = CastLike(q, d) y = Tanh(z)")
    yield Case("channels first, counted", asked, {"x": (3, 2, 4, 5)}, shapes, settings=bounds)
    channels = asked.replace("c = Size(a)", "s = Shape(a) c = Gather(s, one)")
    yield Case(
        "channels first, measured", channels, {"x": (3, 2, 4, 5)}, shapes, settings=f"{bounds}, int64 one = {{1}}"
    )


def _zero_biases() -> Iterator[Case]:
    """As torch's exporter writes convolutions without a bias, and others that look like it."""
    images, filters = {"x": (2, 3, 5, 5)}, {"w": (3, 3, 3, 3)}
    settings = "number zero = {0.0}, number half = {0.5}, int64[1] three = {3}"
    text = "t = CastLike(zero, x) b = Expand(t, three) c = Conv<pads=[1,1,1,1]>(x, w, b) y = Tanh(c)"
    yield Case("zero bias", text, images, filters, settings=settings)
    yield Case("no zero bias", text.replace("zero, x", "half, x"), images, filters, settings=settings)
    yield Case("zero bias, transposed", text.replace("Conv<", "ConvTranspose<"), images, filters, settings=settings)
    made = text.replace("t = CastLike(zero, x) b = Expand(t, three)", "b = ConstantOfShape(three)")
    yield Case("zero bias of zeros", made, images, filters, settings=settings)
    filled = made.replace("Shape(", "Shape<value = float {0.5}>(").replace("float {", "float[1] {")
    yield Case("no zero bias of a constant", filled, images, filters, settings=settings)
    computed = text.replace("b = Expand(t, three)", "e = Expand(t, three) b = Add(e, v)")
    yield Case("no zero bias of a sum", computed, images, filters | {"v": (3,)}, settings=settings)


def _normalisations() -> Iterator[Case]:
    statistics = dict.fromkeys(("scale", "bias", "mean", "var"), (3,))
    for momentum in (0.9, 0.0):
        text = f"""c = Conv<pads=[1,1,1,1]>(x, w)
            n, m, v = BatchNormalization<training_mode=1, momentum={momentum}>(c, scale, bias, mean, var) y = Tanh(n)"""
        yield Case(f"normalised, momentum {momentum}", text, {"x": (3, 2, 4, 5)}, {"w": (3, 2, 3, 3), **statistics})
    expanded = text.replace("<pads=[1,1,1,1]>(x, w)", "(x, w, b)")
    yield Case("expanded", expanded, {"x": (3, 1, 4, 5)}, {"w": (3, 1, 1, 1), "b": (3,), **statistics})
    # Channels that are the same, and a parameter of two layers.
    twice = """d = Concat<axis=1>(x, x, x)
        n, m, v = BatchNormalization<training_mode=1>(d, scale, bias, mean, var) t = Tanh(n)
        k, o, q = BatchNormalization<training_mode=1>(t, scale, bias, mean, var) y = Tanh(k)"""
    yield Case("normalised twice by one layer", twice, {"x": (3, 1, 4, 5)}, statistics)
    frozen = "n = BatchNormalization(x, scale, bias, mean, var) y = Relu(n)"
    yield Case("normalised by running statistics", frozen, {"x": (3, 3, 4, 5)}, statistics)


def _activations() -> Iterator[Case]:
    for bounds in ("low, high", "low"):
        # On the bounds: test_lowering.test_activations_on_their_bounds.
        text = f"h = MatMul(x, w) s = Add(h, odd) c = Clip(s, {bounds}) y = MatMul(c, v)"
        settings = "number low = {0.0}, number high = {0.7}, number odd = {0.03}"
        yield Case(f"clipped by {bounds}", text, {"x": (4, 5)}, {"w": (5, 6), "v": (6, 3)}, settings=settings)
        typed = text.replace("y = MatMul(c, v)", "t = CastLike(v, c) y = MatMul(c, t)")
        yield Case(f"clipped by {bounds}, a type", typed, {"x": (4, 5)}, {"w": (5, 6), "v": (6, 3)}, settings=settings)
    for dtype in TYPES:
        text = "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)"
        yield Case(f"rectified, {dtype.__name__}", text, {"x": (4, 5)}, {"w": (5, 6), "v": (6, 3)}, dtype=dtype)
    # What comes back from a root or a logarithm of 0 is infinite, and the activation has to keep it away.
    for name, after in {
        "roots": "t = Transpose<perm=[1,0]>(r) y = Sqrt(t)",
        "powers": "f = Flatten(r) y = Pow(f, half)",
        "lengths of zeros": "d = Sub(r, many) z = Relu(d) e = Mul(z, z) s = ReduceSum<keepdims=0>(e, one) y = Sqrt(s)",
        "logarithms": "l = Log(r) c = Greater(r, low) y = Where(c, l, low)",
        # Here, nothing is infinite.
        "normalised": """m = ReduceMean<axes=[1]>(r) d = Sub(r, m) e = Pow(d, two) v = ReduceMean<axes=[1]>(e)
            a = Add(v, half) s = Sqrt(a) y = Div(d, s)""",
    }.items():
        settings = "number low = {0}, number half = {0.5}, number two = {2}, number many = {9}, int64[1] one = {1}"
        for activation in ("Relu(h)", "Clip(h, low)"):
            text = f"h = MatMul(x, w) r = {activation} {after}"
            yield Case(f"{name} of {activation}", text, {"x": (4, 5)}, {"w": (5, 6)}, settings=settings)


def _products() -> Iterator[Case]:
    attention = """q = Add(x, b) r = Reshape(q, shape) t = Transpose<perm=[2,0,3,1,4]>(r)
        a = Gather<axis=0>(t, zero) k = Gather<axis=0>(t, one) v = Gather<axis=0>(t, two)
        u = Transpose<perm=[0,1,3,2]>(k) s = MatMul(a, u) p = Softmax<axis=-1>(s) y = MatMul(p, v)"""
    numbers = "int64[5] shape = {2, 5, 3, 2, 4}, int64 zero = {0}, int64 one = {1}, int64 two = {2}"
    yield Case("attention by Gather", attention, {"x": (2, 5, 24)}, {"b": (24,)}, settings=numbers)
    copied = attention.replace(
        "t = Transpose<perm=[2,0,3,1,4]>(r)", "i = Transpose<perm=[2,0,3,1,4]>(r) t = Identity(i)"
    )
    yield Case("attention by Gather of a copy", copied, {"x": (2, 5, 24)}, {"b": (24,)}, settings=numbers)
    turned = "a = Tanh(x) t = Transpose<perm=[0,2,1]>(a) s = MatMul(v, t) y = Tanh(s)"
    yield Case("keys", turned, {"x": (2, 3, 4)}, {"v": (2, 5, 4)})
    yield Case("keys of all", turned, {"x": (2, 3, 4)}, {"v": (5, 4)})  # one matrix for the whole stack
    yield Case(
        "squared keys", "a = Tanh(x) t = Transpose<perm=[0,2,1]>(a) s = MatMul(a, t) y = Tanh(s)", {"x": (2, 3, 4)}
    )
    squeezed = """r = Unsqueeze(x, one) t = Transpose<perm=[3,1,0,2]>(r) g = Gather<axis=0>(t, last)
        s = Squeeze(g, zero) y = Tanh(s)"""
    axes = "int64[1] one = {1}, int64[1] zero = {0}, int64 last = {-1}"
    yield Case("selected of moved axes", squeezed, {"x": (2, 3, 4)}, settings=axes)
    places = "g = Gather<axis=1>(x, chosen) y = Tanh(g)"
    yield Case("selected places", places, {"x": (2, 4)}, settings="int64[2] chosen = {3, 1}")
    parts = "a, b, c = Split<axis=1>(x) d = Mul(a, b) e = Tanh(c) y = Add(d, e)"
    yield Case("parts", parts, {"x": (2, 6)})
    slices = "a = Slice(x, zero, two, one) b = Slice(x, two, four, one) c = Tanh(a) y = Mul(c, b)"
    numbers = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}"
    yield Case("slices", slices, {"x": (3, 4)}, settings=numbers)
    transposed = "t = Transpose<perm=[1,0]>(w) h = MatMul(x, t) y = Tanh(h)"
    yield Case("transposed weights", transposed, {"x": (4, 3)}, {"w": (5, 3)})
    gemm = "t = Transpose<perm=[1,0]>(w) h = Gemm(x, t, b) y = Tanh(h)"
    yield Case("transposed weights, Gemm", gemm, {"x": (4, 3)}, {"w": (5, 3), "b": (5,)})
    biased = "h = MatMul(x, w) a = Add(h, b) y = Tanh(a)"
    yield Case("biases of many rows", biased, {"x": (260, 4)}, {"w": (4, 32), "b": (32,)})
    yield Case("biases of sequences", biased, {"x": (10, 26, 4)}, {"w": (4, 32), "b": (32,)})
    spread = "m = ReduceMean<axes=[1], keepdims=1>(x) d = Sub(x, m) e = Mul(d, d) y = ReduceMean<axes=[1]>(e)"
    yield Case("means", spread, {"x": (3, 5)})
    many = "a = Tanh(x) b = MatMul(a, w) c = Mul(a, a) d = Exp(a) e = Add(b, c) y = Add(d, e)"
    yield Case("three terms", many, {"x": (3, 3)}, {"w": (3, 3)})
    vectors = "h = MatMul(x, w) t = Tanh(h) r = MatMul(t, v) d = MatMul(r, r) y = Mul(r, d)"
    yield Case("products with vectors", vectors, {"x": (4, 5)}, {"w": (5,), "v": (4, 3)})
    yield Case("products of many with a vector", "h = MatMul(x, w) y = Tanh(h)", {"x": (2, 3, 5)}, {"w": (5,)})
    yield Case("products of one row", biased, {"x": (1, 4)}, {"w": (4, 1), "b": (1,)})


def _dense_layers() -> Iterator[Case]:
    """Layers that have their features first, and those that cannot."""
    layer, weights = "h = Gemm<transB=1>(x, w, b)", {"w": (256, 3), "b": (256,)}
    last, more = "y = Gemm<transB=1>(a, v, c)", {"v": (2, 256), "c": (2,)}
    both = {**weights, **more}
    for name, between in {
        "Relu": "a = Relu(h)",
        "bounds": "a = Clip(h, low, half)",
        "Gelu by Erf": "d = Div(h, two) e = Erf(d) f = Add(e, half) g = Mul(h, f) a = Mul(g, half)",
        "Swish": "s = Sigmoid(h) a = Mul(s, h)",
        "square": "a = Mul(h, h)",
        "number first": "a = Sub(half, h)",
        "no activation": "a = Identity(h)",
        "normalised": "m = ReduceMean<axes=[1]>(h) a = Sub(h, m)",
        "by columns": "a = Mul(h, b)",
        "counted": "r = Tanh(h) n = Size(h) k = CastLike(n, h) a = Div(r, k)",
    }.items():
        numbers = "number low = {0}, number half = {0.5}, number two = {2}"
        yield Case(f"dense, {name}", f"{layer} {between} {last}", {"x": (4, 3)}, both, settings=numbers)
    usual = f"{layer} a = Relu(h) {last}"
    for name, sizes in {"one row": (1, 3), "many rows": (600, 3)}.items():
        yield Case(f"dense, {name}", usual, {"x": sizes}, both)
    for dtype in (np.float64, np.float16):
        yield Case(f"dense, {dtype.__name__}", usual, {"x": (4, 3)}, both, dtype=dtype)
    yield Case(
        "dense, one feature too few", usual, {"x": (4, 3)}, {"w": (255, 3), "b": (255,), "v": (2, 255), "c": (2,)}
    )
    unbiased = f"h = Gemm<transB=1>(x, w) a = Tanh(h) {last}"
    yield Case("dense, no bias", unbiased, {"x": (4, 3)}, {"w": (256, 3), **more})
    yield Case("dense, bias of one", usual, {"x": (4, 3)}, {**both, "b": (1,)})
    yield Case("dense, bias by rows", usual, {"x": (4, 3)}, {**both, "b": (4, 1)}, layouts=("static",))
    scaled = f"h = Gemm<transB=1, transA=1, alpha=0.5, beta=2.0>(x, w, b) a = Tanh(h) {last}"
    yield Case("dense, scaled, of columns", scaled, {"x": (3, 4)}, both)
    yield Case("dense, also an output", usual, {"x": (4, 3)}, both, output="y a")
    yield Case(
        "dense, weights by columns", "h = Gemm(x, w, b) y = Tanh(h)", {"x": (4, 3)}, {"w": (3, 256), "b": (256,)}
    )
    deep = f"""{layer} a = Relu(h) i = Gemm<transB=1>(a, u, e) s = Sigmoid(i) j = Add(s, a) k = Gemm<transB=1>(j, u, e)
        l = Tanh(k) y = Gemm<transB=1>(l, v, c)"""
    yield Case("dense, deep and shared", deep, {"x": (4, 3)}, {**both, "u": (256, 256), "e": (256,)})
    forked = f"{layer} a = Relu(h) g = Gemm<transB=1>(a, v, c) m = ReduceMax<axes=[1]>(a) y = Add(g, m)"
    yield Case("dense, another reader", forked, {"x": (4, 3)}, both)
    squared = f"{layer} a = Tanh(h) y = Gemm<transB=1>(a, a)"
    yield Case("dense, products with itself", squared, {"x": (4, 3)}, weights)
    second = f"{layer} a = Tanh(h) y = Gemm<transA=1>(v, a)"
    yield Case("dense, the second operand", second, {"x": (4, 3)}, {**weights, "v": (4, 2)}, layouts=("static",))
    added = f"{layer} a = Tanh(h) y = Gemm<transB=1>(x, v, a)"
    yield Case("dense, a term of a product", added, {"x": (4, 3)}, {**weights, "v": (256, 3)})
    decided = f"""{layer} a = Tanh(h) z = ReduceSum<keepdims=0>(x) p = Greater(z, low)
        y = If(p) <then_branch = t () => (t) {{ t = Gemm<transB=1>(a, v, c) }},
                   else_branch = f () => (f) {{ i = Neg(a) f = Gemm<transB=1>(i, v, c) }}>"""
    # onnxruntime 1.24 does not load the model itself with its weights as initializers.
    yield Case("dense, in a branch", decided, {"x": (4, 3)}, both, settings="number low = {0}", layouts=("batch",))


def _views() -> Iterator[Case]:
    """Shapes that a program has computed from those of tensors."""
    heads = """s = Shape(x) n = Gather(s, first) r = Concat<axis=0>(n, five, rest, four) h = Reshape(x, r)
        t = Transpose<perm=[0,2,1,3]>(h) a = Tanh(t) u = Transpose<perm=[0,2,1,3]>(a) c = Concat<axis=0>(n, five, rest)
        v = Reshape(u, c) y = Add(v, b)"""
    numbers = "int64[1] first = {0}, int64[1] rest = {-1}, int64[1] four = {4}, int64[1] five = {5}"
    yield Case("heads of computed shapes", heads, {"x": (2, 5, 8)}, {"b": (8,)}, settings=numbers)
    keys = """s = Shape(x) l = Slice(s, start, before) m = Slice(s, before, last) k = Slice(s, last, end)
        stack = Concat<axis=0>(last, m, k) r = Reshape(x, stack) t = Transpose<perm=[0,2,1]>(r)
        back = Concat<axis=0>(l, k, m) u = Reshape(t, back) p = MatMul(x, u) y = Tanh(p)"""
    places = """int64[1] start = {0}, int64[1] before = {-2}, int64[1] last = {-1},
        int64[1] end = {9223372036854775807}"""
    scaled = "t = Transpose<perm=[0,2,1]>(x) s = Mul(t, half) p = MatMul(x, s) y = Tanh(p)"
    for name, text in {
        "scaled keys": scaled,
        "scaled keys, the number first": scaled.replace("Mul(t, half)", "Mul(half, t)"),
        "scaled keys, by a row of one": scaled.replace("half", "one"),
        "keys scaled by rows": scaled.replace("half", "w"),
        "scaled keys, turned otherwise": scaled.replace("[0,2,1]", "[1,2,0]").replace("MatMul(x, s)", "Mul(s, s)"),
    }.items():
        yield Case(
            name,
            text,
            {"x": (2, 3, 4)},
            {"w": (3,)} if "w" in text else {},
            settings="number half = {0.5}, number[1] one = {2}",
        )
    yield Case("keys turned in a stack", keys, {"x": (2, 3, 4, 5)}, settings=places)
    yield Case("square keys turned in a stack", keys, {"x": (2, 3, 4, 4)}, settings=places)
    other = keys.replace("(l, k, m)", "(l, m, k)").replace("MatMul(x, u)", "Mul(x, u)")
    yield Case("a stack put back in another shape", other, {"x": (2, 3, 4, 5)}, settings=places)
    turned = "s = Shape(x) n = Gather(s, first) r = Concat<axis=0>(four, n) h = Reshape(x, r) y = MatMul(x, h)"
    yield Case("sizes in other places", turned, {"x": (3, 4)}, settings=numbers)
    spread = """s = Shape(x) n = Gather(s, first) r = Concat<axis=0>(n, four)
        f = ConstantOfShape<value = int64[1] {-1}>(two) e = Equal(r, f)
        o = ConstantOfShape<value = int64[1] {1}>(two) w = Where(e, o, r)
        h = Expand(b, w) m = Mul(h, x) y = Tanh(m)"""
    counts = f"{numbers}, int64[1] two = {{2}}"
    yield Case("expanded to a computed shape", spread, {"x": (3, 4)}, {"b": (1, 4)}, settings=counts)
    positions = """s = Shape(x) n = Slice(s, one, two) p = Slice(w, zero, n, one) h = Add(x, p) f = Flatten<axis=2>(h)
        y = Tanh(f)"""
    cuts = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}"
    yield Case("as many positions as there are", positions, {"x": (2, 3, 4)}, {"w": (1, 6, 4)}, settings=cuts)


def _attentions() -> Iterator[Case]:
    """Rows that are masked from end to end are NaN, and zeros are written over them."""
    whole = """m = Where(hidden, none, zero) a = Add(x, m) s = Softmax<axis=-1>(a) n = IsNaN(s) p = Where(n, zero, s)
        y = MatMul(p, w)"""
    numbers = "bool[3, 4] hidden = {0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0}, number none = {-inf}, number zero = {0}"
    for name, text in {
        "a masked row": whole,
        "a masked row by columns": whole.replace("axis=-1", "axis=1"),
        "ones for a masked row": whole.replace("Where(n, zero, s)", "Where(n, one, s)"),
        # Softmax's own result is an operand beside that with zeros.
        "other readers of weights": whole.replace("MatMul(p, w)", "MatMul(z, w)").replace("y =", "z = Mul(p, s) y ="),
    }.items():
        settings = numbers.replace("1, 1, 1, 1", "0, 1, 1, 1") if "readers" in name else numbers
        yield Case(name, text, {"x": (3, 4)}, {"w": (4, 2)}, settings=f"{settings}, number one = {{1}}")
    yield Case("a masked row, double", whole, {"x": (3, 4)}, {"w": (4, 2)}, settings=numbers, dtype=np.float64)


def _losses() -> Iterator[Case]:
    tied = """e = Gather(t, i) h = Tanh(e) u = Transpose<perm=[1,0]>(t) s = MatMul(h, u)
        y = SoftmaxCrossEntropyLoss<reduction="mean">(s, k)"""
    for classes in (6, 1024):
        labels = {"i": (5, classes), "k": (5, classes)}
        yield Case(f"tied embedding of {classes}", tied, {}, {"t": (classes, 3)}, labels=labels, opset=18)
    scores = "h = MatMul(x, w) s = Add(h, b) y = SoftmaxCrossEntropyLoss(s, k)"
    shapes = {"w": (3, 1024), "b": (1024,)}
    every = ("static", "batch", "symbolic")
    yield Case("many classes", scores, {"x": (5, 3)}, shapes, labels={"k": (5, 1024)}, layouts=every)
    sequence = """h = MatMul(x, w) f = Reshape(h, flat) y = SoftmaxCrossEntropyLoss(f, k)"""
    flat = "int64[2] flat = {-1, 1024}"
    yield Case(
        "many classes of tokens", sequence, {"x": (2, 3, 4)}, {"w": (4, 1024)}, labels={"k": (6, 1024)}, settings=flat
    )


def _recurrences() -> Iterator[Case]:
    """Recurrent layers as torch's exporters write them, and others that look like it; three steps, batches of two."""
    x, two = {"x": (3, 2, 4)}, "int64[1] one = {1}, int64[1] five = {5}"
    last = "int64 last = {-1}, int64 third = {2}, int64 first = {0}, int64[1] one = {1}, int64[3] merged = {3, -1, 5}"
    for kind, gates in {"RNN": 1, "GRU": 3, "LSTM": 4}.items():
        weights = {"w": (1, 5 * gates, 4), "r": (1, 5 * gates, 5)}
        for name, index, direction in (
            ("last", "last", "forward"),
            ("third", "third", "forward"),
            ("last, reverse", "last", "reverse"),
            ("first", "first", "forward"),
            ("first, reverse", "first", "reverse"),
        ):
            layer = f'h = {kind}<hidden_size=5, direction="{direction}">(x, w, r)'
            taken = f"{layer} s = Squeeze(h, one) t = Transpose<perm=[1,0,2]>(s) y = Gather<axis=1>(t, {index})"
            yield Case(f"{kind}, {name} state", taken, x, weights, settings=last)
    weights = {"w": (1, 20, 4), "r": (1, 20, 5)}
    layer = "h = LSTM<hidden_size=5>(x, w, r)"
    plain = f"{layer} y = Gather<axis=0>(h, last)"
    yield Case("last state of all axes", plain, x, weights, settings=last)
    merged = f"{layer} t = Transpose<perm=[0,2,1,3]>(h) s = Reshape(t, merged) y = Gather<axis=0>(s, last)"
    yield Case("last state of merged axes", merged, x, weights, settings=last)
    other = f"{layer} y = Gather<axis=2>(h, last)"
    yield Case("last sequence", other, x, weights, settings=last)
    lengths = "h = LSTM<hidden_size=5>(x, w, r, , n) y = Gather<axis=0>(h, last)"
    given = f"{last}, int32[2] n = {{3, 1}}"
    yield Case("last step of sequences of other lengths", lengths, x, weights, settings=given)
    for index in ("last", "first"):
        both = f'h = LSTM<hidden_size=5, direction="bidirectional">(x, w, r) y = Gather<axis=0>(h, {index})'
        yield Case(f"{index} step of two directions", both, x, {"w": (2, 20, 4), "r": (2, 20, 5)}, settings=last)
    for name, number in {"zero": "0.0", "other": "0.5"}.items():
        states = """m = Shape<start=1, end=2>(x) f = Concat<axis=0>(one, m, five) z = Expand(fill, f)
            h, l = LSTM<hidden_size=5>(x, w, r, , , z, z) y = Mul(h, h)"""
        fill = f"number fill = {{{number}}}, {two}"
        yield Case(f"{name} first states", states, x, weights, output="y l", settings=fill)
    trained = "h = LSTM<hidden_size=5>(x, w, r, , , f, c) y = Mul(h, h)"
    yield Case("trained first states", trained, x, weights | {"f": (1, 2, 5), "c": (1, 2, 5)}, layouts=("static",))


def _pieces() -> Iterator[Case]:
    """Slices of one tensor, put together again."""
    settings = "int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {-2}, int64[1] d = {9}, int64[1] axis = {1}"
    middle = "p = Slice(w, a, b, axis) q = Slice(w, b, c, axis) r = Slice(w, c, d, axis)"
    for name, pieces in {
        "in another order": "r, p, q",
        "in order": "p, q, r",
        "one twice": "p, q, q, r",
        "one left out": "r, p",
    }.items():
        text = f"{middle} g = Concat<axis=1>({pieces}) h = Transpose<perm=[1,0]>(g) y = MatMul(h, x)"
        yield Case(f"pieces, {name}", text, {"x": (3, 2)}, {"w": (3, 6)}, settings=settings)
    beside = f"{middle} g = Concat<axis=0>(r, p, q) y = MatMul(g, x)"
    yield Case("pieces along another axis", beside, {"x": (2, 2)}, {"w": (3, 6)}, settings=settings)
    of_two = "p = Slice(w, a, b, axis) r = Slice(v, b, d, axis) g = Concat<axis=1>(r, p) y = MatMul(x, g)"
    yield Case("pieces of two", of_two, {"x": (2, 3)}, {"w": (3, 6), "v": (3, 6)}, settings=settings)


def _numbers() -> Iterator[Case]:
    """Parameters that rules would ask for their values, if these did not change."""
    x = {"x": (2, 3)}
    yield Case("a trained exponent", "e = Exp(x) y = Pow(e, p)", x, {"p": ()})
    yield Case("trained bounds", "l = Neg(w) y = Clip(x, l, w)", x, {"w": ()})
    yield Case("a trained bound", "y = Clip(x, low)", x, {"low": ()})


CASES = {
    case.name: case
    for family in (
        _maxima,
        _means,
        _convolutions,
        _zero_biases,
        _normalisations,
        _activations,
        _products,
        _dense_layers,
        _views,
        _attentions,
        _losses,
        _recurrences,
        _pieces,
        _numbers,
    )
    for case in family()
}
