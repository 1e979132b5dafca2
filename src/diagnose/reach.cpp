#include "diagnose/reach.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace distgrad {
namespace {

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

std::set<std::string> names_in(const std::string& expression) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < expression.size();) {
    std::size_t end = i;
    while (end < expression.size() && is_of_name(expression[end])) ++end;
    if (end > i) names.insert(expression.substr(i, end - i));
    i = std::max(end, i + 1);
  }
  return names;
}

Reach::Reach(const Program& program) {
  std::map<std::string, std::set<std::size_t>> behind;
  std::size_t gradient = 0;
  for (const Input& input : program.inputs)
    if (input.requires_grad) behind[input.name] = {gradient++};
  for (const Step& step : program.steps)
    for (const std::string& name : names_in(texts_of(step)))
      if (name != step.name && behind.contains(name))
        behind[step.name].insert(behind[name].begin(), behind[name].end());
  std::set<std::string> used = names_in(program.loss.text);
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    const bool is_used = used.contains(step->name);
    if (is_used) used.merge(names_in(texts_of(*step)));
    steps_.push_back(step->name);
    behind_.push_back(is_used ? behind[step->name] : std::set<std::size_t>());
  }
}

const std::set<std::size_t>& Reach::inputs_behind(const std::string& step) const {
  static const std::set<std::size_t> kNone;
  const auto found = std::find(steps_.begin(), steps_.end(), step);
  return found == steps_.end() ? kNone : behind_[static_cast<std::size_t>(found - steps_.begin())];
}

}  // namespace distgrad
