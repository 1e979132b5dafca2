// Lists the rules, which say how each operator passes on its arguments' errors and what it adds.
// There is one table a family of operators.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "tolerance/op_call.h"

namespace distgrad::tolerance {

struct RuleRow {
  std::string_view op;  // without namespace, overload and in-place underscore
  Rule rule;
};

std::span<const RuleRow> term_rules();         // add, mul, neg: terms of sums
std::span<const RuleRow> pointwise_rules();    // copies, comparisons: those that are not a formula
std::span<const RuleRow> rearranging_rules();  // index, cat, where: elements move
std::span<const RuleRow> reduction_rules();    // sum, prod, amax, median
std::span<const RuleRow> exponential_rules();  // softmax, logsumexp
std::span<const RuleRow> normalisation_rules();  // var, layer_norm
std::span<const RuleRow> norm_rules();           // vector_norm, cdist
std::span<const RuleRow> loss_rules();           // nll_loss, mse_loss
std::span<const RuleRow> contraction_rules();  // mm, dot, index_add, convolution: sums of products
std::span<const RuleRow> matrix_rules();       // inverse, solve, determinant

// Computes a pointwise operator on BoundedValues, in the order of the kernel's own operations.
struct Formula {
  std::string_view op;
  // Has the schema's names of tensors and numbers; an empty name ends them.
  std::array<std::string_view, 6> arguments;
  BoundedValue (*evaluate)(const BoundedValue* arguments);
  // Says that kernels of the 16-bit types round each step, not only the result.
  bool stores_each_step = false;
};
std::span<const Formula> formulas();

bool given(BoundedValue argument);  // false: the argument was None or is not in this overload

// Finds rule and formula; traits.known is false if there is none.
void find_rule(OpTraits& traits);

// Applies traits().formula to all elements of result 0.
void apply_formula(OpCall& call);
// Evaluates an operator without a rule again at perturbed arguments.
void estimate_by_perturbation(OpCall& call);

// Several families share sums. This one returns the error of a sum in any order of rows' terms that
// are finished values, in the kernel's inner arithmetic.
double sum_error(const Buffer& row, const Arithmetic& arithmetic, bool* exact);
// Joins two sums whose terms the run may add in another order, with each addition rounded to the
// stored type.
Cell merged(const Cell& a, const Cell& b);
Cell finished(Cell cell, const Arithmetic& arithmetic);  // sets error from the figures of the terms

}  // namespace distgrad::tolerance
