// Adds what surrounds a collective in a training script: the aspects on request.
#include <fmt/format.h>

#include "audit/maker.h"

namespace distgrad {
namespace {

// The losses are not linear, so that what is recomputed matters.
void add_checkpoints(TrialMaker& maker) {
  for (const char* mode : {"checkpoint", "checkpoint-reentrant"})
    maker.add(Aspect::kCheckpoint, mode, maker.in_mode(mode, 2));
  AuditProgram p = maker.in_mode("checkpoint", 3);
  p.more_collective = "2 * x - 1";
  p.loss = weighted("y") + " + (y * z).sum()";
  maker.add(Aspect::kCheckpoint, "checkpoint-of-two-calls", p);
}

// Uses values that bfloat16 represents exactly, with their sums and products, as a matmul under
// autocast makes them, and float32 values that it does not; without ties and zeros. A collective
// that keeps its operand's precision has the exact gradient of both.
void add_autocasts(TrialMaker& maker) {
  AuditProgram p = maker.in_mode("autocast", 2);
  if (p.ranks != 2) return;  // bfloat16 holds too few of more ranks' products
  p.dtype = "float32";
  p.loss = weighted("y");
  p.inputs["x"] = {{"by_rank", {{{1, 4}, {3, 2}}, {{2, 3}, {1, 4}}}}};
  p.operand = "x @ torch.eye(2)";
  maker.add(Aspect::kAutocast, "autocast-of-a-matmul", p);
  p.inputs["x"] = {{"by_rank", {{{257, 1026}, {515, 260}}, {{258, 771}, {1025, 517}}}}};
  p.operand = "x";
  p.loss = "(y * y).sum() / 2";
  maker.add(Aspect::kAutocast, "autocast-of-float32", p);
}

void add_asyncs(TrialMaker& maker) {
  maker.add(Aspect::kAsync, "async", maker.in_mode("async", 3));
  if (!maker.traits().takes_dim) return;
  AuditProgram p = maker.in_mode("async", 3);
  p.inputs["x"] = maker.random({2, 2 * p.ranks});
  p.options["dim"] = 1;
  maker.add(Aspect::kAsync, "async-along-dim-1", p);
}

void add_compiles(TrialMaker& maker) {
  maker.add(Aspect::kCompile, "compile", maker.in_mode("compile", 2));
  AuditProgram p = maker.in_mode("compile", 2);
  p.after = {{"t", "y.transpose(-1, -2)"}};
  p.loss = weighted("t");
  maker.add(Aspect::kCompile, "compile-transposed-cotangent", p);
}

// The first backward is that of every rank's loss, so its gradients differ by rank and depend on
// all operands.
void add_double_backwards(TrialMaker& maker) {
  for (const int n : {2, 3}) {
    AuditProgram p = maker.base(maker.ranks_or(n));
    p.loss = fmt::format("squared_gradient_norm(((y * y).sum() + {}) * (rank + 1))", weighted("y"));
    maker.add_for_own_losses(Aspect::kDoubleBackward,
                             n == 2 ? "double-backward" : "double-backward-3-ranks", p);
    if (maker.is_of_one_size()) return;
  }
}

}  // namespace

void add_surroundings(TrialMaker& maker, Aspect aspect) {
  switch (aspect) {
    case Aspect::kCheckpoint:
      return add_checkpoints(maker);
    case Aspect::kAutocast:
      return add_autocasts(maker);
    case Aspect::kAsync:
      return add_asyncs(maker);
    case Aspect::kCompile:
      return add_compiles(maker);
    case Aspect::kDoubleBackward:
      return add_double_backwards(maker);
    default:
      return;  // always tried
  }
}

}  // namespace distgrad
