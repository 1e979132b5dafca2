#include "audit/trial.h"

namespace distgrad {
namespace {

constexpr AspectRow kAspects[] = {
    {"ranks", "1 to 5 ranks"},
    {"groups", "subgroups: blocks, strided, of unequal sizes, ranks out of order"},
    {"root", "every root; for send_recv, one source for all ranks"},
    {"dim", "every dim"},
    {"dtype", "float32 and bfloat16"},
    {"shape", "scalars, empty, odd, large and, where allowed, uneven tensors"},
    {"cotangent",
     "transposed (on one rank alone, too), expanded, sliced and shared cotangents, and zeros on "
     "some ranks"},
    {"operand", "transposed, strided and expanded operands, and one that the program uses besides"},
    {"graph", "the output used twice, several calls, one call behind another"},
    {"values", "zeros in products, ties in min and max"},
    {"checkpoint", "the program inside torch.utils.checkpoint, reentrant and not", true, true},
    {"autocast", "under torch.autocast of bfloat16: what a matmul gives, and float32", true, true},
    {"async", "async_op=True, waited for", true, true},
    {"compile", "through torch.compile", true, true},
    {"double-backward", "the gradient of the squared norm of the gradients", true, false},
};
static_assert(std::size(kAspects) == kAspectCount);

}  // namespace

std::span<const AspectRow> aspects() { return kAspects; }
const AspectRow& row_of(Aspect aspect) { return kAspects[static_cast<std::size_t>(aspect)]; }

bool has_one_result(CollectiveKind kind) { return traits(kind).same_on_all; }

bool enters_parallel_region(CollectiveKind kind) { return !traits(kind).communicates; }

bool counts_for(const Trial& trial, CollectiveKind kind, std::string_view objective) {
  switch (trial.loss) {
    case Trial::Loss::kMean:
      return objective == "mean";
    case Trial::Loss::kOneLoss:
      return objective == "replicated";
    case Trial::Loss::kShares:
      return objective == kForShares;
    case Trial::Loss::kSum:
      break;
  }
  if (objective == kForShares) return false;
  if (objective != "replicated") return true;
  // The ranks' own gradient norms are added up; with one loss for all that would be another
  // program.
  return trial.aspect != Aspect::kDoubleBackward && !has_one_result(kind) &&
         !enters_parallel_region(kind);
}

}  // namespace distgrad
