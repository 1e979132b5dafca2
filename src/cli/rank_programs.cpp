#include "cli/rank_programs.h"

#include <algorithm>

#include "pool/workshop.h"
#include "scenario/cases.h"

namespace distgrad {
namespace {

// What torch's functional collectives, checkpoints and torch.compile import when they are first used, for a second or two:
// better once than in every rank, and every rank that takes the place of a failed one.
bool makes_torch_import_dynamo(const std::string& subject) {
  return subject.find("torch.distributed._functional_collectives") != subject.npos ||
         subject.find("@checkpoint") != subject.npos || subject.find("@compile") != subject.npos;
}

}  // namespace

RankPrograms::RankPrograms(std::span<const Case> cases, Interpreters* interpreters, bool simulate_only)
    : commands_{{rank_executable()}} {
  const auto runs = [&](const Case& c) {
    return c.skip_reason.empty() && has_python_ranks(c) && (!simulate_only || calls_code(c));
  };
  const bool imports_dynamo = std::any_of(cases.begin(), cases.end(), [&](const Case& c) {
    return runs(c) && makes_torch_import_dynamo(c.subject);
  });
  for (const Case& c : cases) {
    if (!runs(c) || !by_python_.emplace(c.python, commands_.size()).second) continue;
    commands_.push_back(
        python_rank_command(interpreters->find(c.python).path, imports_dynamo ? "torch._dynamo" : ""));
  }
}

int RankPrograms::of(const Case& c) const { return has_python_ranks(c) ? by_python_.at(c.python) : 0; }

int RankPrograms::simulator_of(const Case& c) const { return calls_code(c) ? by_python_.at(c.python) : 0; }

}  // namespace distgrad
