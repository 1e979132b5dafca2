#include "rank/memory_need.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "base/number_text.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/input_values.h"
#include "rank/simulated_call.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

class Count {
 public:
  Count(const CompiledProgram& compiled, std::uint64_t allowed)
      : compiled_(compiled), program_(compiled.program), allowed_(allowed) {}

  void require() {
    const bool is_whole = run();
    if (exceeded_at_.empty()) return;
    std::string text = "with " + exceeded_by_ + " the values of all ranks take " +
                       bytes_text(exceeded_to_) + ", and a simulator may have " +
                       bytes_text(allowed_) + " (--max-memory); the program takes " +
                       (is_whole ? "" : "at least ") + bytes_text(most_) + ": " + sizes_text();
    throw InvalidAt(exceeded_at_, text);
  }

 private:
  // Returns true if all could be counted.
  bool run() {
    const ConstructorDevice nowhere(at::kMeta);
    const at::NoGradGuard no_graph;
    const ErrorAnalysis::Pause no_bounds;
    try {
      for (int r = 0; r < program_.world_size; ++r) slots_.push_back(compiled_.rank_slots(r));
      for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
        const Input& input = program_.inputs[i];
        set(compiled_.input_slots[i], values_of(input), input.name, input.pointer);
      }
      for (const CompiledStep& step : compiled_.steps) {
        Tensors values;
        for (const auto& slots : slots_) values.push_back(step.text.evaluate(slots));
        if (step.step->collective())
          values = simulate_step(program_, *step.step, values, nullptr, nullptr);
        set(step.slot, values, step.step->name, step.step->pointer);
        forget(step);
      }
      return true;
    } catch (const std::exception&) {  // the simulation itself says what is wrong
      return false;
    }
  }

  Tensors values_of(const Input& input) const {
    const auto without_memory = [](const at::Tensor& x) {
      return at::empty(x.sizes(), at::device(at::kMeta).dtype(at::kDouble));
    };
    if (!input.is_local())
      return laid_out(program_, input, without_memory(full_value(program_, input)));
    Tensors values;
    for (int r = 0; r < program_.world_size; ++r)
      values.push_back(without_memory(local_value(program_, input, r)));
    return values;
  }

  void set(int slot, const Tensors& values, const std::string& name, const std::string& pointer) {
    std::uint64_t added = 0;
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      slots_[r][slot] = values[r];
      const c10::StorageImpl* storage = values[r].storage().unsafeGetStorageImpl();
      if (holders_[storage]++ == 0) added += storage->nbytes();
    }
    held_ += added;
    most_ = std::max(most_, held_);
    if (added > 0) sizes_[added].push_back(name);
    if (held_ <= allowed_ || !exceeded_at_.empty()) return;
    exceeded_at_ = pointer;
    exceeded_by_ = name;
    exceeded_to_ = held_;
  }

  // Forgets values that the simulation frees. It keeps inputs, for their gradients, and outputs of
  // collectives, to report them.
  void forget(const CompiledStep& last) {
    for (const int slot : last.last_used) {
      const auto is_expression = [&](const CompiledStep& s) {
        return s.slot == slot && !s.step->collective();
      };
      if (std::none_of(compiled_.steps.begin(), compiled_.steps.end(), is_expression)) continue;
      for (auto& slots : slots_) {
        const auto holder = holders_.find(slots[slot].toTensor().storage().unsafeGetStorageImpl());
        if (--holder->second == 0) {
          held_ -= holder->first->nbytes();
          holders_.erase(holder);
        }
        slots[slot] = c10::IValue();
      }
    }
  }

  // Returns "100 of 512 MiB (z0 to z99), w of 64 MiB", the largest share first.
  std::string sizes_text() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> shares;  // and the size of one
    for (const auto& [bytes, names] : sizes_) shares.emplace_back(bytes * names.size(), bytes);
    std::sort(shares.rbegin(), shares.rend());
    constexpr std::size_t kMost = 3;
    std::string text;
    for (std::size_t i = 0; i < std::min(kMost, shares.size()); ++i) {
      const std::vector<std::string>& names = sizes_.at(shares[i].second);
      const std::string size = bytes_text(shares[i].second);
      text += i == 0 ? "" : ", ";
      text += names.size() == 1 ? names[0] + " of " + size
                                : std::to_string(names.size()) + " of " + size + " each (" +
                                      names.front() + " to " + names.back() + ")";
    }
    return text + (shares.size() > kMost ? ", and smaller ones" : "");
  }

  const CompiledProgram& compiled_;
  const Program& program_;
  std::uint64_t allowed_;
  std::vector<std::vector<c10::IValue>> slots_;  // by rank
  std::map<const c10::StorageImpl*, int> holders_;
  std::map<std::uint64_t, std::vector<std::string>> sizes_;  // names by what they added
  std::uint64_t held_ = 0, most_ = 0;
  std::string exceeded_at_, exceeded_by_;
  std::uint64_t exceeded_to_ = 0;
};

}  // namespace

std::int64_t declared_bytes(const Program& program, const Input& input) {
  const auto* random = std::get_if<RandomSpec>(&input.value);
  if (!random) return 0;
  std::int64_t bytes = sizeof(double) * (input.is_local() ? program.world_size : 1);
  for (const auto& entry : random->shape) {
    const auto* size = std::get_if<std::int64_t>(&entry);
    if (!size) return 0;
    bytes *= *size;  // at most 2^27 elements, says the parser
  }
  return bytes;
}

void require_memory(const CompiledProgram& compiled, std::uint64_t allowed) {
  if (allowed > 0) Count(compiled, allowed).require();
}

}  // namespace distgrad
