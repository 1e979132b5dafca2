"""What an expression may call: the tables of src/rank/expression/allow_list.cpp, from which a
test's script makes this file.

python3 src/python/tests/allow_list_table.py > src/python/distgrad/ranks/allow_list.py
"""

TORCH = frozenset(
    """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all allclose amax
    amin aminmax any arange argmax argmin argsort argwhere asin asinh atan atan2 atanh atleast_1d
    atleast_2d atleast_3d baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize
    cartesian_prod cat cdist ceil celu chunk clamp clamp_max clamp_min clip clone column_stack
    concat concatenate conv1d conv2d conv3d copysign cos cosh cosine_similarity count_nonzero cross
    cummax cummin cumprod cumsum deg2rad det detach diag diag_embed diagflat diagonal
    diagonal_scatter diff digamma dist div divide dot dsplit dstack einsum eq equal erf erfc erfinv
    exp exp2 expm1 eye fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod
    frac full full_like gather gcd ge ger greater greater_equal group_norm gt heaviside hsplit
    hstack hypot i0 index_add index_copy index_fill index_select inner inverse is_floating_point
    isclose isfinite isinf isnan isneginf isposinf kron kthvalue layer_norm lcm ldexp le lerp less
    less_equal lgamma linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp
    logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp lt masked_fill
    masked_scatter masked_select matmul matrix_exp matrix_power max maximum mean median meshgrid min
    minimum mm moveaxis movedim msort mul multiply mv nan_to_num nanmean nansum narrow ne neg
    negative nonzero norm not_equal numel ones ones_like outer pairwise_distance permute polygamma
    positive pow prelu prod quantile rad2deg ravel reciprocal relu remainder repeat_interleave
    reshape rms_norm roll rot90 round rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce
    searchsorted select select_scatter selu sgn sigmoid sign signbit sin sinc sinh slice_scatter
    slogdet softmax sort split sqrt square squeeze stack std std_mean sub subtract sum swapaxes
    swapdims t take take_along_dim tan tanh tensor tensor_split tile topk trace transpose trapezoid
    tril tril_indices triu triu_indices true_divide trunc unbind unflatten unsqueeze var var_mean
    vdot vsplit vstack where xlogy zeros zeros_like
    """.split()
)

METHODS = frozenset(
    """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all allclose amax
    amin aminmax any argmax argmin argsort argwhere asin asinh atan atan2 atanh baddbmm bfloat16
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bool
    broadcast_to ceil chunk clamp clamp_max clamp_min clip clone contiguous copysign cos cosh
    count_nonzero cross cummax cummin cumprod cumsum deg2rad det detach diag diag_embed diagflat
    diagonal diagonal_scatter diff digamma dim dist div divide dot double dsplit eq equal erf erfc
    erfinv exp exp2 expand expand_as expm1 fix flatten flip fliplr flipud float float_power floor
    floor_divide fmax fmin fmod frac gather gcd ge ger greater greater_equal gt half heaviside
    hsplit hypot i0 index_add index_copy index_fill index_select inner int inverse is_floating_point
    isclose isfinite isinf isnan isneginf isposinf item kron kthvalue lcm ldexp le lerp less
    less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_not logical_or logical_xor logit logsumexp long lt masked_fill
    masked_scatter masked_select matmul matrix_exp matrix_power max maximum mean median min minimum
    mm moveaxis movedim msort mul multiply mv nan_to_num nanmean nansum narrow ndimension ne neg
    negative nelement new_full new_ones new_zeros nonzero norm not_equal numel outer permute
    positive pow prelu prod quantile rad2deg ravel reciprocal relu remainder repeat
    repeat_interleave reshape reshape_as roll rot90 round rsqrt scatter scatter_add scatter_reduce
    select select_scatter sgn short sigmoid sign signbit sin sinc sinh size slice_scatter slogdet
    softmax sort split sqrt square squeeze std sub subtract sum swapaxes swapdims t take
    take_along_dim tan tanh tensor_split tile to topk trace transpose tril triu true_divide trunc
    type_as unbind unflatten unfold unsqueeze var vdot view view_as vsplit where xlogy
    """.split()
)

LINALG = frozenset(
    """
    cholesky cross det diagonal eigh eigvalsh inv matrix_exp matrix_norm matrix_power multi_dot norm
    pinv qr slogdet solve solve_triangular svd svdvals vecdot vector_norm
    """.split()
)

ATTRIBUTES = frozenset(
    """
    T dtype mT ndim shape
    """.split()
)

DTYPES = frozenset(
    """
    bfloat16 bool double float float16 float32 float64 half int int16 int32 int64 int8 long short
    uint8
    """.split()
)

CONSTANTS = frozenset(
    """
    e inf nan pi
    """.split()
)

PYTHON = frozenset(
    """
    abs bool enumerate float int len max min range sum zip
    """.split()
)

# The arguments on offer, in torch's schema language; empty: as torch.NAME has them.
FUNCTIONAL = {
    "binary_cross_entropy": (
        "Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean'"
    ),
    "binary_cross_entropy_with_logits": (
        "Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean', "
        "Tensor? pos_weight=None"
    ),
    "celu": "Tensor input, Scalar alpha=1.0",
    "conv1d": "",
    "conv2d": "",
    "conv3d": "",
    "cosine_similarity": "Tensor x1, Tensor x2, int dim=1, float eps=1e-08",
    "cross_entropy": (
        "Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, "
        "str reduction='mean', float label_smoothing=0.0"
    ),
    "elu": "Tensor input, Scalar alpha=1.0",
    "embedding": "Tensor input, Tensor weight",
    "gelu": "Tensor input, *, str approximate='none'",
    "glu": "Tensor input, int dim=-1",
    "hardsigmoid": "Tensor input",
    "hardswish": "Tensor input",
    "hardtanh": "Tensor input, Scalar min_val=-1.0, Scalar max_val=1.0",
    "huber_loss": "Tensor input, Tensor target, str reduction='mean', float delta=1.0",
    "kl_div": "Tensor input, Tensor target, *, str reduction='mean', bool log_target=False",
    "l1_loss": "Tensor input, Tensor target, *, str reduction='mean'",
    "layer_norm": (
        "Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
        "float eps=1e-05"
    ),
    "leaky_relu": "Tensor input, Scalar negative_slope=0.01",
    "linear": "Tensor input, Tensor weight, Tensor? bias=None",
    "log_softmax": "Tensor input, int dim",
    "logsigmoid": "Tensor input",
    "mish": "Tensor input",
    "mse_loss": "Tensor input, Tensor target, *, str reduction='mean'",
    "nll_loss": (
        "Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, "
        "str reduction='mean'"
    ),
    "one_hot": "Tensor tensor, int num_classes=-1",
    "pad": "Tensor input, int[] pad, str mode='constant', float? value=None",
    "pairwise_distance": "Tensor x1, Tensor x2, float p=2.0, float eps=1e-06, bool keepdim=False",
    "prelu": "",
    "relu": "Tensor input",
    "relu6": "Tensor input",
    "rms_norm": "Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None",
    "selu": "Tensor input",
    "sigmoid": "Tensor input",
    "silu": "Tensor input",
    "smooth_l1_loss": "Tensor input, Tensor target, *, str reduction='mean', float beta=1.0",
    "softmax": "Tensor input, int dim",
    "softplus": "Tensor input, Scalar beta=1, Scalar threshold=20",
    "tanh": "Tensor input",
}
