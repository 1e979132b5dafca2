#include "verify/case_workers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/version.h"
#include "verify/measuring.h"

namespace distgrad {
namespace {

SimulationRun cannot_be_replayed() {
  SimulationRun run;
  run.simulation.invalid = InvalidProgram{"", "its truth was measured on the ranks", ""};
  return run;
}

}  // namespace

bool is_on_gpu(const Case& c) { return c.device == "cuda"; }

RunRequest run_request(const Case& c, const Program& program) {
  return {program,
          c.subject,
          c.backend,
          backward_weights(program, c.objective, divides_replicated(c, program)),
          c.device == "cpu" ? "" : c.device,
          {}};
}

void CaseWorkers::prepare_for(const Case& c) {
  pool_.prepare(c.world_size, programs_.of(c), transport_of(c.backend, c.device));
}

Ticket CaseWorkers::ask_truth(const SimulateRequest& request, const Case& c) {
  if (!needs_differences(request.program.steps))
    return pool_.simulate(request, c.timeout_s, QueuePosition::kLast, programs_.simulator_of(c));
  return pool_.run(measuring_request(c, request), kMeasuringTakes * c.timeout_s, programs_.of(c));
}

Ticket CaseWorkers::ask_run(const RunRequest& request, const Case& c,
                            std::shared_ptr<const ExpectedValues> expected) {
  return pool_.run(request, c.timeout_s, programs_.of(c), std::move(expected));
}

std::optional<Completion> CaseWorkers::next() {
  std::optional<Completion> done = pool_.next();
  if (done) check_torch();
  return done;
}

// Asks again if a process died. While a finished case is looked at once more, the process may have
// been ended from outside, which says nothing of the case.
template <class Ask>
auto CaseWorkers::unless_lost(const Ask& ask) {
  auto run = ask();
  const auto is_lost = [&] { return run.error && run.error->kind == ErrorKind::kCrash; };
  if (is_lost()) run = ask();
  if (is_lost()) lost_ = run.error->message;
  return run;
}

SimulationRun CaseWorkers::simulate_now(const SimulateRequest& request, const Case& c) {
  const bool measures = needs_differences(request.program.steps);
  if (measures && is_replay(request)) return cannot_be_replayed();
  // Code that a program calls is simulated in its interpreter; a driven call is torch's own.
  const int simulator = has_code(request.program.steps) ? programs_.simulator_of(c) : 0;
  SimulationRun run = unless_lost([&] {
    std::optional<Completion> done = pool_.wait(
        measures ? ask_truth(request, c)
                 : pool_.simulate(request, c.timeout_s, QueuePosition::kNext, simulator));
    if (!done) throw Interrupted();
    return measures ? measured(std::get<DistributedRun>(std::move(done->result)))
                    : std::get<SimulationRun>(std::move(done->result));
  });
  // A replay then means that the hypothesis could not be tried.
  if (run.error) run.simulation.invalid = InvalidProgram{"", run.error->message, ""};
  return run;
}

DistributedRun CaseWorkers::run_now(const RunRequest& request, const Case& c) {
  return unless_lost([&] {
    std::optional<Completion> done = pool_.wait(ask_run(request, c));
    if (!done) throw Interrupted();
    return std::get<DistributedRun>(std::move(done->result));
  });
}

// C++ has no stable interface to torch, so the versions must match.
void CaseWorkers::check_torch() {
  if (torch_is_checked_ || kTorchVersion.empty()) return;
  torch_is_checked_ = true;
  const std::string version = pool_.torch_version();
  const std::string built(release_of(kTorchVersion));
  if (release_of(version) != built)
    throw SystemError("distgrad was built with torch " + built + ", but " + rank_executable() +
                      " runs with torch " + version + "; build it again");
}

Simulation CaseMachine::simulate(const SimulateRequest& request) {
  SimulateRequest bounded_alike = request;
  bounded_alike.on_gpu = is_on_gpu(case_);
  return workers_.simulate_now(bounded_alike, case_).simulation;
}

std::optional<DistributedRun> CaseMachine::observe() {
  RunRequest request = run_request(case_, program_);
  request.observe = true;
  return workers_.run_now(request, case_);
}

std::optional<DistributedRun> CaseMachine::run(const Program& program,
                                               const std::vector<double>& weights) {
  RunRequest request = run_request(case_, program);
  request.weights = weights;
  DistributedRun run = workers_.run_now(request, case_);
  if (run.error ||
      std::ranges::any_of(run.ranks, [](const RankResult& r) { return r.error.has_value(); }))
    return std::nullopt;
  return run;
}

std::optional<DistributedRun> CaseMachine::drive(const Program& program, const Drive& drive) {
  RunRequest request = run_request(case_, program_);
  request.program = program;
  request.drive = drive;
  return workers_.run_now(request, case_);
}

}  // namespace distgrad
