#include "rank/difference_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "scenario/syntax.h"

namespace distgrad {
namespace {

bool takes_values_out(const Syntax& syntax) {
  constexpr std::string_view kMethods[] = {"detach", "item",     "to",  "type", "float",
                                           "half",   "bfloat16", "int", "long", "bool"};
  constexpr std::string_view kFunctions[] = {"float", "int", "bool"};
  const auto is_among = [&](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (syntax.kind == Syntax::Kind::kAttribute && is_among(kMethods, syntax.text)) return true;
  const bool is_call =
      syntax.kind == Syntax::Kind::kCall && syntax.children[0]->kind == Syntax::Kind::kName;
  if (is_call && is_among(kFunctions, syntax.children[0]->text)) return true;
  const auto child_does = [](const SyntaxPtr& child) { return child && takes_values_out(*child); };
  return std::any_of(syntax.children.begin(), syntax.children.end(), child_does) ||
         std::any_of(syntax.keywords.begin(), syntax.keywords.end(),
                     [&](const auto& keyword) { return child_does(keyword.second); });
}

}  // namespace

bool takes_values_out(const Program& program) {
  const auto does = [](const Expression& e) { return takes_values_out(*parse_expression(e.text)); };
  return does(program.loss) ||
         std::any_of(program.steps.begin(), program.steps.end(), [&](const Step& step) {
           const CollectiveCall* call = step.collective();
           return does(call ? call->operand : std::get<Expression>(step.what));
         });
}

at::Tensor direction_like(const at::Tensor& x, std::uint64_t seed) {
  const at::Tensor place = at::arange(x.numel(), at::kDouble) + static_cast<double>(1000003 * seed);
  const at::Tensor noise =
      (at::sin(place * 12.9898) * 43758.5453).frac().abs().reshape(x.sizes());  // in [0, 1)
  const at::Tensor sign = at::where(at::cos(place * 78.233) < 0, at::full({}, -1.0, at::kDouble),
                                    at::ones({}, at::kDouble))
                              .reshape(x.sizes());
  const at::Tensor size = at::where(x == 0, at::ones_like(x), x.abs());
  return sign * (0.5 + 0.5 * noise) * size;
}

}  // namespace distgrad
