#include "rank/expression/allow_list.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace distgrad {
namespace {

constexpr unsigned F = kFunction;
constexpr unsigned M = kMethod;
constexpr unsigned FM = kFunction | kMethod;
constexpr unsigned L = kLinalg;

constexpr AllowedFunction kCreation[] = {
    {"arange", F},     {"eye", F},          {"full", F},         {"full_like", F},
    {"linspace", F},   {"logspace", F},     {"new_full", M},     {"new_ones", M},
    {"new_zeros", M},  {"ones", F},         {"ones_like", F},    {"scalar_tensor", F},
    {"tensor", F},     {"tril_indices", F}, {"triu_indices", F}, {"zeros", F},
    {"zeros_like", F},
};

constexpr AllowedFunction kArithmetic[] = {
    {"abs", FM},          {"absolute", FM},  {"add", FM},         {"addcdiv", FM},
    {"addcmul", FM},      {"ceil", FM},      {"clamp", FM},       {"clamp_max", FM},
    {"clamp_min", FM},    {"clip", FM},      {"copysign", FM},    {"div", FM},
    {"divide", FM},       {"fix", FM},       {"float_power", FM}, {"floor", FM},
    {"floor_divide", FM}, {"fmax", FM},      {"fmin", FM},        {"fmod", FM},
    {"frac", FM},         {"gcd", FM},       {"heaviside", FM},   {"hypot", FM},
    {"lcm", FM},          {"ldexp", FM},     {"lerp", FM},        {"maximum", FM},
    {"minimum", FM},      {"mul", FM},       {"multiply", FM},    {"nan_to_num", FM},
    {"neg", FM},          {"negative", FM},  {"positive", FM},    {"pow", FM},
    {"reciprocal", FM},   {"remainder", FM}, {"round", FM},       {"rsqrt", FM},
    {"rsub", F},          {"sgn", FM},       {"sign", FM},        {"sqrt", FM},
    {"square", FM},       {"sub", FM},       {"subtract", FM},    {"true_divide", FM},
    {"trunc", FM},        {"where", FM},
};

constexpr AllowedFunction kTranscendental[] = {
    {"acos", FM},    {"acosh", FM},    {"asin", FM},    {"asinh", FM},     {"atan", FM},
    {"atan2", FM},   {"atanh", FM},    {"cos", FM},     {"cosh", FM},      {"deg2rad", FM},
    {"digamma", FM}, {"erf", FM},      {"erfc", FM},    {"erfinv", FM},    {"exp", FM},
    {"exp2", FM},    {"expm1", FM},    {"i0", FM},      {"lgamma", FM},    {"log", FM},
    {"log10", FM},   {"log1p", FM},    {"log2", FM},    {"logaddexp", FM}, {"logaddexp2", FM},
    {"logit", FM},   {"polygamma", F}, {"rad2deg", FM}, {"sigmoid", FM},   {"sin", FM},
    {"sinc", FM},    {"sinh", FM},     {"tan", FM},     {"tanh", FM},      {"xlogy", FM},
};

constexpr AllowedFunction kComparison[] = {
    {"allclose", FM},    {"bitwise_and", FM}, {"bitwise_left_shift", FM},
    {"bitwise_not", FM}, {"bitwise_or", FM},  {"bitwise_right_shift", FM},
    {"bitwise_xor", FM}, {"eq", FM},          {"equal", FM},
    {"ge", FM},          {"greater", FM},     {"greater_equal", FM},
    {"gt", FM},          {"isclose", FM},     {"isfinite", FM},
    {"isinf", FM},       {"isnan", FM},       {"isneginf", FM},
    {"isposinf", FM},    {"le", FM},          {"less", FM},
    {"less_equal", FM},  {"logical_and", FM}, {"logical_not", FM},
    {"logical_or", FM},  {"logical_xor", FM}, {"lt", FM},
    {"ne", FM},          {"not_equal", FM},   {"signbit", FM},
};

constexpr AllowedFunction kReduction[] = {
    {"all", FM},      {"amax", FM},   {"amin", FM},         {"aminmax", FM},
    {"any", FM},      {"argmax", FM}, {"argmin", FM},       {"count_nonzero", FM},
    {"cummax", FM},   {"cummin", FM}, {"cumprod", FM},      {"cumsum", FM},
    {"diff", FM},     {"dist", FM},   {"logcumsumexp", FM}, {"logsumexp", FM},
    {"max", FM},      {"mean", FM},   {"median", FM},       {"min", FM},
    {"nanmean", FM},  {"nansum", FM}, {"norm", FM},         {"prod", FM},
    {"quantile", FM}, {"std", FM},    {"std_mean", F},      {"sum", FM},
    {"trapezoid", F}, {"var", FM},    {"var_mean", F},
};

constexpr AllowedFunction kOrdering[] = {
    {"argsort", FM},     {"bucketize", F}, {"kthvalue", FM}, {"msort", FM},
    {"searchsorted", F}, {"sort", FM},     {"topk", FM},
};

constexpr AllowedFunction kShape[] = {
    {"adjoint", FM},      {"atleast_1d", F},
    {"atleast_2d", F},    {"atleast_3d", F},
    {"block_diag", F},    {"broadcast_tensors", F},
    {"broadcast_to", FM}, {"cat", F},
    {"chunk", FM},        {"column_stack", F},
    {"concat", F},        {"concatenate", F},
    {"diag", FM},         {"diag_embed", FM},
    {"diagflat", FM},     {"diagonal", FM},
    {"dsplit", FM},       {"dstack", F},
    {"expand", M},        {"expand_as", M},
    {"flatten", FM},      {"flip", FM},
    {"fliplr", FM},       {"flipud", FM},
    {"hsplit", FM},       {"hstack", F},
    {"meshgrid", F},      {"moveaxis", FM},
    {"movedim", FM},      {"narrow", FM},
    {"permute", FM},      {"ravel", FM},
    {"repeat", M},        {"repeat_interleave", FM},
    {"reshape", FM},      {"reshape_as", M},
    {"roll", FM},         {"rot90", FM},
    {"split", FM},        {"squeeze", FM},
    {"stack", F},         {"swapaxes", FM},
    {"swapdims", FM},     {"t", FM},
    {"tensor_split", FM}, {"tile", FM},
    {"transpose", FM},    {"tril", FM},
    {"triu", FM},         {"unbind", FM},
    {"unflatten", FM},    {"unfold", M},
    {"unsqueeze", FM},    {"view", M},
    {"view_as", M},       {"vsplit", FM},
    {"vstack", F},
};

constexpr AllowedFunction kIndexing[] = {
    {"argwhere", FM},       {"diagonal_scatter", FM}, {"gather", FM},
    {"index_add", FM},      {"index_copy", FM},       {"index_fill", FM},
    {"index_select", FM},   {"masked_fill", FM},      {"masked_scatter", FM},
    {"masked_select", FM},  {"nonzero", FM},          {"scatter", FM},
    {"scatter_add", FM},    {"scatter_reduce", FM},   {"select", FM},
    {"select_scatter", FM}, {"slice_scatter", FM},    {"take", FM},
    {"take_along_dim", FM},
};

constexpr AllowedFunction kLinearAlgebra[] = {
    {"addbmm", FM},
    {"addmm", FM},
    {"addmv", FM},
    {"addr", FM},
    {"baddbmm", FM},
    {"bmm", FM},
    {"cartesian_prod", F},
    {"cdist", F},
    {"cosine_similarity", F},
    {"cross", FM},
    {"det", FM},
    {"dot", FM},
    {"einsum", F},
    {"ger", FM},
    {"inner", FM},
    {"inverse", FM},
    {"kron", FM},
    {"logdet", FM},
    {"matmul", FM},
    {"matrix_exp", FM},
    {"matrix_power", FM},
    {"mm", FM},
    {"mv", FM},
    {"outer", FM},
    {"pairwise_distance", F},
    {"slogdet", FM},
    {"trace", FM},
    {"vdot", FM},
};

constexpr AllowedFunction kLinalgModule[] = {
    {"cholesky", L},
    {"cross", L},
    {"det", L},
    {"diagonal", L},
    {"eigh", L},
    {"eigvalsh", L},
    {"inv", L},
    {"matrix_exp", L},
    {"matrix_norm", L},
    {"matrix_power", L},
    {"multi_dot", L},
    {"norm", L},
    {"pinv", L},
    {"qr", L},
    {"slogdet", L},
    {"solve", L},
    {"solve_triangular", L},
    {"svd", L},
    {"svdvals", L},
    {"vecdot", L},
    {"vector_norm", L},
};

constexpr AllowedFunction kNetwork[] = {
    {"celu", F},       {"conv1d", F},     {"conv2d", F},       {"conv3d", F},
    {"group_norm", F}, {"layer_norm", F}, {"log_softmax", FM}, {"prelu", FM},
    {"relu", FM},      {"rms_norm", F},   {"selu", F},         {"softmax", FM},
};

constexpr AllowedFunction kTypes[] = {
    {"bfloat16", M},
    {"bool", M},
    {"clone", FM},
    {"contiguous", M},
    {"detach", FM},
    {"dim", M},
    {"double", M},
    {"float", M},
    {"half", M},
    {"int", M},
    {"is_floating_point", FM},
    {"item", M},
    {"long", M},
    {"ndimension", M},
    {"nelement", M},
    {"numel", FM},
    {"short", M},
    {"size", M},
    {"to", M},
    {"type_as", M},
};

constexpr AllowedGroup kGroups[] = {
    {"New tensors", kCreation},
    {"Arithmetic, element by element", kArithmetic},
    {"Exponentials, logarithms, angles", kTranscendental},
    {"Comparison and logic", kComparison},
    {"Reductions and scans", kReduction},
    {"Order", kOrdering},
    {"Shape", kShape},
    {"Indexing", kIndexing},
    {"Products of vectors and matrices", kLinearAlgebra},
    {"torch.linalg", kLinalgModule},
    {"Networks", kNetwork},
    {"Data types, sizes, copies", kTypes},
};

constexpr FunctionalFunction kFunctional[] = {
    // name, Python's signature, operator, order
    {"binary_cross_entropy",
     "Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean'",
     "binary_cross_entropy", ""},
    {"binary_cross_entropy_with_logits",
     "Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean', Tensor? "
     "pos_weight=None",
     "binary_cross_entropy_with_logits", "01243"},
    {"celu", "Tensor input, Scalar alpha=1.0", "celu", ""},
    {"conv1d", "", "conv1d", ""},
    {"conv2d", "", "conv2d", ""},
    {"conv3d", "", "conv3d", ""},
    {"cosine_similarity", "Tensor x1, Tensor x2, int dim=1, float eps=1e-08", "cosine_similarity",
     ""},
    {"cross_entropy",
     "Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, str "
     "reduction='mean', float label_smoothing=0.0",
     "cross_entropy_loss", "012435"},
    {"elu", "Tensor input, Scalar alpha=1.0", "elu", ""},
    {"embedding", "Tensor input, Tensor weight", "embedding", "10"},
    {"gelu", "Tensor input, *, str approximate='none'", "gelu", ""},
    {"glu", "Tensor input, int dim=-1", "glu", ""},
    {"hardsigmoid", "Tensor input", "hardsigmoid", ""},
    {"hardswish", "Tensor input", "hardswish", ""},
    {"hardtanh", "Tensor input, Scalar min_val=-1.0, Scalar max_val=1.0", "hardtanh", ""},
    {"huber_loss", "Tensor input, Tensor target, str reduction='mean', float delta=1.0",
     "huber_loss", ""},
    {"kl_div", "Tensor input, Tensor target, *, str reduction='mean', bool log_target=False",
     "kl_div", ""},
    {"l1_loss", "Tensor input, Tensor target, *, str reduction='mean'", "l1_loss", ""},
    {"layer_norm",
     "Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float "
     "eps=1e-05",
     "layer_norm", ""},
    {"leaky_relu", "Tensor input, Scalar negative_slope=0.01", "leaky_relu", ""},
    {"linear", "Tensor input, Tensor weight, Tensor? bias=None", "linear", ""},
    {"log_softmax", "Tensor input, int dim", "log_softmax", ""},
    {"logsigmoid", "Tensor input", "log_sigmoid", ""},
    {"mish", "Tensor input", "mish", ""},
    {"mse_loss", "Tensor input, Tensor target, *, str reduction='mean'", "mse_loss", ""},
    {"nll_loss",
     "Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, str "
     "reduction='mean'",
     "nll_loss_nd", "01243"},
    {"one_hot", "Tensor tensor, int num_classes=-1", "one_hot", ""},
    {"pad", "Tensor input, int[] pad, str mode='constant', float? value=None", "pad", ""},
    {"pairwise_distance", "Tensor x1, Tensor x2, float p=2.0, float eps=1e-06, bool keepdim=False",
     "pairwise_distance", ""},
    {"prelu", "", "prelu", ""},
    {"relu", "Tensor input", "relu", ""},
    {"relu6", "Tensor input", "relu6", ""},
    {"rms_norm", "Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None",
     "rms_norm", ""},
    {"selu", "Tensor input", "selu", ""},
    {"sigmoid", "Tensor input", "sigmoid", ""},
    {"silu", "Tensor input", "silu", ""},
    {"smooth_l1_loss", "Tensor input, Tensor target, *, str reduction='mean', float beta=1.0",
     "smooth_l1_loss", ""},
    {"softmax", "Tensor input, int dim", "softmax", ""},
    {"softplus", "Tensor input, Scalar beta=1, Scalar threshold=20", "softplus", ""},
    {"tanh", "Tensor input", "tanh", ""},
};

constexpr AllowedAttribute kAttributes[] = {
    {"T", "aten::numpy_T"}, {"dtype", "prim::dtype"}, {"mT", "aten::mT"},
    {"ndim", "aten::dim"},  {"shape", "aten::size"},
};

constexpr TorchDType kTorchDTypes[] = {
    {"bfloat16", "BFloat16"}, {"bool", "Bool"},     {"double", "Double"},  {"float", "Float"},
    {"float16", "Half"},      {"float32", "Float"}, {"float64", "Double"}, {"half", "Half"},
    {"int", "Int"},           {"int16", "Short"},   {"int32", "Int"},      {"int64", "Long"},
    {"int8", "Char"},         {"long", "Long"},     {"short", "Short"},    {"uint8", "Byte"},
};

constexpr TorchConstant kConstants[] = {
    {"e", 2.718281828459045},
    {"inf", std::numeric_limits<double>::infinity()},
    {"nan", std::numeric_limits<double>::quiet_NaN()},
    {"pi", 3.141592653589793},
};

constexpr std::string_view kPythonFunctions[] = {"abs", "bool", "enumerate", "float", "int", "len",
                                                 "max", "min",  "range",     "sum",   "zip"};

struct Refusal {
  std::string_view reason;
  std::initializer_list<std::string_view> names;
};

// Lists names that people try, and what to do instead. It only makes messages better: a name that
// is not allowed is refused whether it is here or not.
const Refusal kRefusals[] = {
    {"it draws random numbers; declare a \"random\" input",
     {"alpha_dropout", "bernoulli",     "binomial",    "dropout",     "feature_dropout",
      "get_rng_state", "initial_seed",  "manual_seed", "multinomial", "normal",
      "poisson",       "rand",          "rand_like",   "randint",     "randint_like",
      "randn",         "randn_like",    "random",      "randperm",    "rrelu",
      "seed",          "set_rng_state", "uniform"}},
    {"its memory is not initialised; write torch.zeros",
     {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}},
    {"it touches files", {"from_file", "load", "save"}},
    {"it gives plain Python values; index the tensor, or write float(x) for one number",
     {"data_ptr", "numpy", "tolist", "storage", "untyped_storage"}},
    {"write x.detach()", {"data"}},
    {"gradients are distgrad's business here",
     {"autograd", "backward", "enable_grad", "grad", "grad_fn", "is_leaf", "no_grad",
      "register_hook", "requires_grad", "retain_grad", "set_grad_enabled"}},
    {"scenarios run on the device that distgrad chooses", {"cpu", "cuda", "device", "pin_memory"}},
    {"its running statistics change in place", {"batch_norm", "instance_norm"}},
    {"write x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-12)", {"normalize"}},
    {"write torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v",
     {"scaled_dot_product_attention"}},
    {"",
     {"as_strided",
      "as_tensor",
      "asarray",
      "classes",
      "compile",
      "distributed",
      "from_numpy",
      "func",
      "hub",
      "jit",
      "multiprocessing",
      "ops",
      "set_default_dtype",
      "set_num_threads",
      "set_printoptions",
      "utils",
      "use_deterministic_algorithms",
      "apply_",
      "map_",
      "is_tensor",
      "get_default_dtype",
      "stft",
      "fft",
      "special"}},
};

}  // namespace

std::span<const AllowedGroup> allowed_groups() { return kGroups; }
std::span<const FunctionalFunction> functional_functions() { return kFunctional; }
std::span<const AllowedAttribute> allowed_attributes() { return kAttributes; }
std::span<const TorchDType> torch_dtypes() { return kTorchDTypes; }
std::span<const TorchConstant> torch_constants() { return kConstants; }
std::span<const std::string_view> python_functions() { return kPythonFunctions; }

bool is_allowed(std::string_view name, Place place) {
  for (const AllowedGroup& group : kGroups)
    for (const AllowedFunction& function : group.functions)
      if (function.name == name && (function.places & place)) return true;
  return false;
}

std::vector<std::string> allowed_names(Place place) {
  std::vector<std::string> names;
  for (const AllowedGroup& group : kGroups)
    for (const AllowedFunction& function : group.functions)
      if (function.places & place) names.emplace_back(function.name);
  return names;
}

std::string reason_for_refusal(std::string_view name) {
  for (const Refusal& refusal : kRefusals)
    if (!refusal.reason.empty() && std::ranges::find(refusal.names, name) != refusal.names.end())
      return "; " + std::string(refusal.reason);
  if (name.ends_with('_') && !name.ends_with("__")) {
    const std::string_view stem = name.substr(0, name.size() - 1);
    if (is_allowed(stem, kMethod) || is_allowed(stem, kFunction))
      return "; it works in place, write " + std::string(stem);
    return "; it works in place";
  }
  return "";
}

bool is_known_impure(std::string_view name) {
  return std::ranges::any_of(kRefusals, [&](const Refusal& refusal) {
    return std::ranges::find(refusal.names, name) != refusal.names.end();
  });
}

}  // namespace distgrad
