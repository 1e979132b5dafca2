#include "repro/call_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "report/words.h"

namespace distgrad {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

std::string pairs_text(const CollectiveCall& spec) {
  std::vector<std::string> pairs;
  for (const auto& [source, to] : spec.pairs) pairs.push_back(fmt::format("({}, {})", source, to));
  return fmt::format("[{}]", fmt::join(pairs, ", "));
}

std::string splits_text(const CollectiveCall& spec) {
  if (spec.kind != CollectiveKind::kAllToAll)
    return fmt::format("[{}]", fmt::join(spec.splits.at(0), ", "));
  std::vector<std::string> rows;
  for (const auto& row : spec.splits) rows.push_back(fmt::format("[{}]", fmt::join(row, ", ")));
  return fmt::format("[{}]", fmt::join(rows, ", "));
}

// Gloo has no premul_sum; what comes before the sum is done by hand.
const char* native_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return "dist.ReduceOp.PRODUCT";
    case ReduceOp::kMin:
      return "dist.ReduceOp.MIN";
    case ReduceOp::kMax:
      return "dist.ReduceOp.MAX";
    default:
      return "dist.ReduceOp.SUM";
  }
}

}  // namespace

std::string filled(const CallSource& call, std::string source) {
  const CollectiveCall& spec = *call.spec;
  const bool group = call.has_group();
  replace_all(source, "$group_arg", group ? ", group=group" : "");
  replace_all(source, "$size", group ? "dist.get_world_size(group)" : "dist.get_world_size()");
  replace_all(source, "$rank", group ? "dist.get_rank(group)" : "dist.get_rank()");
  replace_all(source, "$group", group ? "group" : "");
  replace_all(source, "$to",
              group ? fmt::format("group=group, group_dst={}", spec.root)
                    : fmt::format("dst={}", spec.root));
  replace_all(source, "$from",
              group ? fmt::format("group=group, group_src={}", spec.root)
                    : fmt::format("src={}", spec.root));
  replace_all(source, "$dim", std::to_string(spec.dim.value_or(0)));
  replace_all(source, "$root", std::to_string(spec.root));
  replace_all(source, "$factor", number_text(spec.factor));
  replace_all(source, "$op", native_op(spec.op));
  if (!spec.splits.empty()) replace_all(source, "$splits", splits_text(spec));
  replace_all(source, "$pairs", pairs_text(spec));
  return source;
}

std::string all_reduce_source(const CallSource& call, const std::string& in,
                              const std::string& out) {
  const ReduceOp op = call.spec->op;
  std::string text =
      op == ReduceOp::kPremulSum
          ? fmt::format("{} = {} * $factor\n", out, in)
          : fmt::format("{} = {}.clone(memory_format=torch.contiguous_format)\n", out, in);
  text += fmt::format("dist.all_reduce({}, $op$group_arg)\n", out);
  if (op == ReduceOp::kAvg) text += fmt::format("{} /= $size\n", out);
  return text;
}

std::string reduction_adjoint_source(const CallSource& call) {
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return "dx = g\n";
    case ReduceOp::kAvg:
      return "dx = g / $size\n";
    case ReduceOp::kPremulSum:
      return "dx = g * $factor\n";
    case ReduceOp::kProduct:
      return "xs = [torch.empty_like(g) for _ in range($size)]\n"
             "dist.all_gather(xs, x.contiguous()$group_arg)\n"
             "others = torch.ones_like(g)\n"
             "for rank, other in enumerate(xs):\n"
             "    if rank != $rank:\n"
             "        others *= other\n"
             "dx = g * others\n";
    default:
      return "extremum = x.clone(memory_format=torch.contiguous_format)\n"
             "dist.all_reduce(extremum, $op$group_arg)\n"
             "holds = (x == extremum).to(g.dtype)\n"
             "holders = holds.clone()\n"
             "dist.all_reduce(holders$group_arg)\n"
             "dx = g * holds / holders\n";
  }
}

std::string gathered_source(const CallSource& call, const std::string& what,
                            const std::string& parts) {
  if (call.is_uneven) return fmt::format("{} = gathered({}$group_arg)\n", parts, what);
  return fmt::format(
      "{0} = {0}.contiguous()\n"
      "{1} = [torch.empty_like({0}) for _ in range($size)]\n"
      "dist.all_gather({1}, {0}$group_arg)\n",
      what, parts);
}

std::string joined_source(const CallSource& call, const std::string& parts) {
  return call.spec->dim ? fmt::format("torch.cat({}, $dim)", parts)
                        : fmt::format("torch.stack({})", parts);
}

// Of what joins a piece of each rank.
std::string own_piece_source(const CallSource& call) {
  if (!call.spec->dim) return "g[$rank]";
  return call.is_uneven ? "g.split(ctx.sizes, $dim)[$rank]" : "g.chunk($size, $dim)[$rank]";
}

std::string chunks_source(const CallSource& call, const std::string& what) {
  if (call.spec->splits.empty()) return what + ".chunk($size, $dim)";
  return what + (call.spec->kind == CollectiveKind::kAllToAll ? ".split($splits[$rank], $dim)"
                                                              : ".split($splits, $dim)");
}

const HelperSource kHelpers[9] = {
    {"gathered", R"(def gathered(x, group=None):
    """all_gather of tensors of different sizes, which Gloo does not have: padded, and cut again."""
    shapes = [None] * dist.get_world_size(group)
    dist.all_gather_object(shapes, x.shape, group=group)
    padded = x.new_zeros(max(1, *(shape.numel() for shape in shapes)))
    padded[: x.numel()] = x.reshape(-1)
    parts = [torch.empty_like(padded) for _ in shapes]
    dist.all_gather(parts, padded, group=group)
    return [part[: shape.numel()].reshape(shape) for part, shape in zip(parts, shapes)]
)"},
    {"exchanged", R"(def exchanged(chunks, shapes, group=None):
    """all_to_all: chunks[i] goes to rank i; returns what came from each rank, of these shapes."""
    received = torch.cat([chunk.new_zeros(shape.numel()) for chunk, shape in zip(chunks, shapes)])
    counts = [shape.numel() for shape in shapes], [chunk.numel() for chunk in chunks]
    dist.all_to_all_single(received, torch.cat([chunk.reshape(-1) for chunk in chunks]), *counts, group=group)
    return [part.reshape(shape) for part, shape in zip(received.split(counts[0]), shapes)]
)"},
    {"attached", R"(def attached(x):
    """Autograd runs a backward only where it leads somewhere, and all ranks have to meet in it."""
    return x if x.requires_grad else x.detach().requires_grad_()
)"},
    {"Meeting", R"(class Meeting(torch.autograd.Function):
    """The loss. Its backward comes by every collective, whether this rank's loss depends on it or not:
    else other ranks would wait there for ever."""

    @staticmethod
    def forward(ctx, loss, *values):
        ctx.save_for_backward(*values)
        return loss.clone()

    @staticmethod
    def backward(ctx, g):
        return g, *(torch.zeros_like(value) for value in ctx.saved_tensors)
)"},
    {"waited_for", R"(def waited_for(function, late, x, *group):
    """One rank comes late, forward and backward: what is used before it is there is then wrong always, not by luck."""
    is_late = dist.get_rank(*group) == late % dist.get_world_size(*group)
    if is_late:
        time.sleep(0.03)
    y = function(x, *group)
    if is_late and y.requires_grad:
        y.register_hook(lambda _: time.sleep(0.03))
    return y
)"},
    {"waited", R"(def waited(y):
    """What an asynchronous call gave, once it is there; None for a handle."""
    if isinstance(y, (list, tuple)):
        return [value for value in map(waited, y) if value is not None]
    if isinstance(y, torch.Tensor):
        return y.clone() if type(y).__name__ == "AsyncCollectiveTensor" else y  # clone waits
    if hasattr(y, "is_completed"):
        y.wait()
        return None
    return y
)"},
    {"compiled", R"(def compiled(function):
    """A plain function that calls it, traced by Dynamo and AOTAutograd, and run by torch's own operators."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return torch.compile(call, backend="aot_eager", dynamic=False)
)"},
    {"plainly", R"(def default_dtype(dtype):
    """Runs a function with this default dtype: the program's expressions with the case's, your code with torch's own."""

    def with_function(function):
        def call(*args, **kwargs):
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return function(*args, **kwargs)
            finally:
                torch.set_default_dtype(before)

        return call

    return with_function


plainly = default_dtype(torch.float32)
)"},
    {"seed", R"(def seed(rank):
    """What is random is the same each time the program runs, and different on every rank."""
    torch.manual_seed(rank)
    random.seed(rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)
)"},
};

}  // namespace distgrad
