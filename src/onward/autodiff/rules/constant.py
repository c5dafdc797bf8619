"""Operators through which no derivative flows."""

from onward.autodiff.registry import nondifferentiable

# Their results are not floating point.
nondifferentiable(
    *"And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual".split(),
    *"IsInf IsNaN Less LessOrEqual NonMaxSuppression NonZero Not Or SequenceLength Shape Size".split(),
    *"StringNormalizer Xor".split(),
)

# Constant almost everywhere: the derivative is zero wherever it exists.
nondifferentiable("Ceil", "Floor", "Round", "Sign", "Hardmax")

# Their results depend on the value of no floating-point input.
nondifferentiable(
    *"Constant ConstantOfShape SequenceEmpty EyeLike BlackmanWindow HannWindow HammingWindow MelWeightMatrix".split(),
    *"RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli TfIdfVectorizer".split(),
)

# It looks at the same bits as another type.
nondifferentiable("BitCast")

# Of classic models: labels and categories, which are constant almost everywhere, and maps, which have no cotangents.
nondifferentiable(
    *"CastMap CategoryMapper DictVectorizer LabelEncoder OneHotEncoder ZipMap".split(), domain="ai.onnx.ml"
)
