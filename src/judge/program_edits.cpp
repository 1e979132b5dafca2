#include "judge/program_edits.h"

#include <algorithm>
#include <utility>

namespace distgrad {
namespace {

bool is_taken(const Program& program, const std::string& name) {
  const auto named = [&](const auto& thing) { return thing.name == name; };
  return std::any_of(program.steps.begin(), program.steps.end(), named) ||
         std::any_of(program.inputs.begin(), program.inputs.end(), named) ||
         std::any_of(program.groups.begin(), program.groups.end(), named);
}

}  // namespace

std::string unused_name(const Program& program, std::string name) {
  while (is_taken(program, name)) name += '_';
  return name;
}

Input local_input(std::string name, std::vector<Array> by_rank, bool requires_grad) {
  Input input;
  input.name = std::move(name);
  input.value = std::move(by_rank);
  input.requires_grad = requires_grad;
  input.layout = {{"", {Layout::Kind::kLocal, 0}}};
  return input;
}

Array zeros(const Shape& shape) {
  return Array(shape, std::vector<double>(static_cast<std::size_t>(element_count(shape)), 0.0));
}

}  // namespace distgrad
