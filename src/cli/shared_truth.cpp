#include "cli/shared_truth.h"

#include <cstdint>
#include <set>
#include <variant>

#include "scenario/cases.h"

namespace distgrad {
namespace {

constexpr std::int64_t kManyElements = std::int64_t{1} << 20;  // all ranks' inputs together

std::int64_t elements_of(const Input& input, int world_size) {
  if (const auto* array = std::get_if<Array>(&input.value)) return array->size() * world_size;
  const auto* random = std::get_if<RandomSpec>(&input.value);
  if (!random) return 0;
  std::int64_t elements = world_size;
  for (const auto& size : random->shape)
    if (const auto* number = std::get_if<std::int64_t>(&size)) elements *= *number;
  return elements;
}

}  // namespace

bool is_on_gpu(const Case& c) { return c.device == "cuda"; }

// Code gives the truth in the interpreter that runs it.
SharedTruthKey key_of(const Case& c) {
  return {c.scenario,           c.world_size, c.dtype,
          spelled(c.objective), is_on_gpu(c), calls_code(c) ? c.python : ""};
}

bool asks_for_bounds_at_once(const Program& program) {
  std::int64_t elements = 0;
  for (const Input& input : program.inputs) elements += elements_of(input, program.world_size);
  return elements < kManyElements || program.single_device || !program.truth.empty();
}

std::vector<Case> one_for_each_truth(std::span<const Case> cases) {
  std::vector<Case> kept;
  std::set<SharedTruthKey> seen;
  for (const Case& c : cases) {
    if (!seen.insert(key_of(c)).second) continue;
    kept.push_back(c);
    // What the file expects of a subject is none of the simulation's business, unless the file's
    // own guards are what is expected to fail.
    const std::string& finding = c.expected.finding;
    if (finding != "truth" && finding != "program") kept.back().expected = {};
  }
  return kept;
}

}  // namespace distgrad
