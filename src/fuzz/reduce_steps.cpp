// Removes steps.
#include "fuzz/reductions.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// Removes step i and replaces its name by `by` in what follows.
void without_step(const Document& document, std::size_t i, const std::string& by,
                  const std::string& what, Reductions& out) {
  Document candidate = document;
  const std::string name = name_of_step(document["steps"][i]);
  try {
    substitute_name(candidate, name, by, Reach::kProgram, i + 1);
  } catch (const ExpressionError&) {
    return;
  }
  candidate["steps"].erase(i);
  out.push_back({what, std::move(candidate)});
}

void drop_step(const Document& document, std::size_t i, Reductions& out) {
  const Document& step = document["steps"][i];
  const std::string name = name_of_step(step);
  const Document& value = value_of_step(step);
  const std::string dropped = "step " + name + " dropped";
  if (!uses_name(document, name)) return without_step(document, i, "0", dropped, out);
  if (value.is_string()) {
    without_step(document, i, value, "step " + name + " written where it is used", out);
    without_step(document, i, "1.0", dropped + ": 1 in its place", out);
    without_step(document, i, "0.0", dropped + ": 0 in its place", out);
    return;
  }
  const std::string text = dropped + ": ";
  const auto kind = kind_of(value);
  if (!kind) {  // a call of the user's code
    for (const Document& argument : value.value("args", Document::array()))
      if (argument.is_string())
        without_step(document, i, argument, text + "an argument in its place", out);
    return;
  }
  const std::string operand = value[std::string(traits(*kind).name)];
  without_step(document, i, operand, text + "its operand in its place", out);
  without_step(document, i, "torch.ones_like(" + operand + ")", text + "ones in its place", out);
  without_step(document, i, "torch.zeros_like(" + operand + ")", text + "zeros in its place", out);
  without_step(document, i, "1.0", text + "1 in its place", out);
  without_step(document, i, "0.0", text + "0 in its place", out);
}

// Keeps only the first steps and a loss of the last of them, since later ones often do not matter.
void drop_last_steps(const Document& document, Reductions& out) {
  const std::size_t steps = document["steps"].size();
  for (std::size_t keep = 1; keep + 1 < steps; ++keep) {
    Document candidate = document;
    while (candidate["steps"].size() > keep)
      candidate["steps"].erase(candidate["steps"].size() - 1);
    const std::string last = name_of_step(document["steps"][keep - 1]);
    candidate["loss"] = "torch.sum(" + last + " * " + last + ")";
    out.push_back({"the steps after " + last + " dropped", std::move(candidate)});
  }
}

}  // namespace

void reduce_steps(const Document& document, Reductions& out) {
  drop_last_steps(document, out);
  for (std::size_t i = document["steps"].size(); i-- > 0;) drop_step(document, i, out);
}

}  // namespace distgrad
