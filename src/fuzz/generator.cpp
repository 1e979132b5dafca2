#include "fuzz/generator.h"

#include <fmt/format.h>

#include "fuzz/draft.h"

namespace distgrad::fuzz {
namespace {

// Most programs have at most one collective, so that failures are small to begin with.
int draw_count(Random& random) {
  int count = random.chance(4) ? 0 : 1;
  while (count > 0 && count < 6 && random.chance(32)) ++count;
  return count;
}

void draw_steps(Draft& draft) {
  const int count = draw_count(draft.random);
  for (int i = 0; i < count; ++i) {
    if (draft.random.chance(25)) {
      Value value = draw_expression(draft, draft.random.chance(75) ? 1 : 2);
      if (value.text != draft.names.back().text)
        add_step(draft, fmt::format("a{}", i), std::move(value));
    }
    draw_collective(draft, fmt::format("y{}", i));
  }
}

}  // namespace

nlohmann::ordered_json draw_program(const Choices& choices, std::uint64_t seed,
                                    std::uint64_t index) {
  Draft draft(choices, seed, index);
  draw_world(draft);
  const bool region = choices.invariant && draft.random.chance(60);
  if (region) {
    draw_invariant_region(draft);
    return std::move(draft.file);
  }
  draw_inputs(draft);
  draft.file["steps"] = Json::array();
  draw_steps(draft);
  draw_objective(draft, draw_loss(draft).text);
  return std::move(draft.file);
}

void add_step(Draft& draft, const std::string& name, Value value) {
  Json step;
  step[name] = value.text;
  draft.file["steps"].push_back(std::move(step));
  value.text = name;
  draft.names.push_back(std::move(value));
}

}  // namespace distgrad::fuzz
