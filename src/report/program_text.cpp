#include "report/program_text.h"

#include <fmt/format.h>

#include "model/layout_name.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::size_t kLongestValue = 400;  // bytes
constexpr int kProgramDigits = 9;

std::string cut(std::string text) {
  if (text.size() <= kLongestValue) return text;
  text.resize(kLongestValue);
  return text + " ...";
}

std::string value_text(const Array& array) {
  if (array.size() > static_cast<std::int64_t>(kLongestValue))
    return fmt::format("a value of shape {}", index_text(array.shape()));
  return cut(array_text(array, kProgramDigits));
}

std::string value_text(const std::vector<Array>& by_rank) {
  std::string text;
  for (const Array& array : by_rank) {
    text += (text.empty() ? "" : ", ") + value_text(array);
    if (text.size() > kLongestValue) break;
  }
  return cut("by rank [" + text + "]");
}

std::string value_text(const Expression& expression) { return expression.text; }

std::string value_text(const RandomSpec& random) {
  std::vector<std::string> shape;
  for (const auto& size : random.shape) {
    const auto* number = std::get_if<std::int64_t>(&size);
    shape.push_back(number ? std::to_string(*number) : std::get<Expression>(size).text);
  }
  const std::string of = fmt::format("shape [{}], seed {}", fmt::join(shape, ", "), random.seed);
  switch (random.kind) {
    case RandomSpec::Kind::kIntegers:
      return fmt::format("random integers from {} to {}, {}", number_text(random.low),
                         number_text(random.high), of);
    case RandomSpec::Kind::kUniform:
      return fmt::format("random, uniform from {} to {}, {}", number_text(random.low),
                         number_text(random.high), of);
    case RandomSpec::Kind::kNormal:
      break;
  }
  return "random, normal, " + of;
}

std::string layout_word(const Layout& layout) {
  const std::string name(layout_name(layout.kind));
  return layout.kind == Layout::Kind::kShard ? fmt::format("{}: {}", name, layout.dim) : name;
}

std::string how_held(const Input& input) {
  std::string text;
  for (const AxisLayout& l : input.layout)
    text +=
        (text.empty() ? "" : ", ") + (l.axis.empty() ? "" : l.axis + " ") + layout_word(l.layout);
  for (const auto& [axis, how] : input.sync)
    text += fmt::format("; sync {}{}", how == Input::Sync::kSum ? "sum" : "mean",
                        axis.empty() ? "" : " along " + axis);
  if (!input.requires_grad) text += "; requires no grad";
  return text;
}

ProgramLine step_line(const Step& step) {
  return {step.name, step_text(step), "", step.is_reported()};
}

std::string partition_text(const GroupSpec& group) {
  if (group.size > 0) return fmt::format("blocks of {} consecutive ranks", group.size);
  if (group.stride > 0) return fmt::format("ranks equal modulo {}", group.stride);
  std::vector<std::string> lists;
  for (const auto& ranks : group.listed)
    lists.push_back(fmt::format("[{}]", fmt::join(ranks, ", ")));
  return cut(fmt::format("[{}]", fmt::join(lists, ", ")));
}

}  // namespace

std::string call_text(const CollectiveCall& call) {
  const CollectiveTraits& kind = traits(call.kind);
  std::string text = fmt::format("{}({}", kind.name, call.operand.text);
  if (kind.takes_op) text += fmt::format(", op={}", name_of(call.op));
  if (kind.takes_op && call.op == ReduceOp::kPremulSum)
    text += ", factor=" + number_text(call.factor);
  if (kind.takes_root) text += fmt::format(", root={}", call.root);
  if (call.dim) text += fmt::format(", dim={}", *call.dim);
  if (!call.group.empty()) text += ", group=" + call.group;
  std::vector<std::string> rows;
  for (const auto& row : call.splits) rows.push_back(fmt::format("[{}]", fmt::join(row, ", ")));
  if (!rows.empty())
    text += rows.size() == 1 ? ", splits=" + rows[0]
                             : fmt::format(", splits=[{}]", fmt::join(rows, ", "));
  std::vector<std::string> pairs;
  for (const auto& [source, to] : call.pairs) pairs.push_back(fmt::format("{} to {}", source, to));
  if (!pairs.empty()) text += fmt::format(", {}", fmt::join(pairs, ", "));
  return text + ")";
}

std::string step_text(const Step& step) {
  if (const CodeCall* code = step.code()) return fmt::format("{}({})", code->code, texts_of(step));
  const CollectiveCall* call = step.collective();
  return call ? call_text(*call) : texts_of(step);
}

ProgramText program_text(const Scenario& scenario) {
  ProgramText text;
  for (const MeshAxis& axis : scenario.mesh)
    text.groups.push_back({axis.name, fmt::format("mesh axis of size {}", axis.size), "", false});
  for (const GroupSpec& group : scenario.groups)
    text.groups.push_back({group.name, partition_text(group), "", false});
  for (const Input& input : scenario.inputs)
    text.inputs.push_back(
        {input.name, std::visit([](const auto& value) { return value_text(value); }, input.value),
         how_held(input), false});
  for (const Step& step : scenario.steps) text.steps.push_back(step_line(step));
  text.loss = scenario.loss.text;
  if (scenario.single_device) {
    for (const Step& step : scenario.single_device->steps)
      text.single_device.push_back(step_line(step));
    text.single_device.push_back({"", scenario.single_device->loss.text, "", false});
  }
  return text;
}

}  // namespace distgrad
