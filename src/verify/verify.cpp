#include "verify/verify.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "judge/objective_truths.h"
#include "judge/verdict.h"
#include "launched/leader.h"
#include "pool/rank_room.h"
#include "pool/worker_pool.h"
#include "protocol/board.h"
#include "verify/case_workers.h"
#include "verify/conclude.h"
#include "verify/measuring.h"
#include "verify/ordered_results.h"
#include "verify/rank_programs.h"
#include "verify/shared_truth.h"

namespace distgrad {

struct Verifier::Machinery {
  RankPrograms programs;
  WorkerPool pool;
};

namespace {

// Bounds the truths that are asked for, or waited for by a case, at one time: enough that no worker
// ever waits for the driver, and few enough that their tensors fit into memory.
constexpr std::size_t kAhead = 128;

// Works on one batch of cases. It asks for each truth, runs the cases that share it, and concludes
// from each run (conclude.h).
class Verification {
 public:
  Verification(std::span<const Case> cases, const VerifyOptions& options, VerifyListener& listener,
               CaseWorkers workers)
      : cases_(cases),
        options_(options),
        listener_(listener),
        workers_(workers),
        results_(options.fail_fast, listener) {}

  // Hands on what was finished, however it ends.
  void run() {
    try {
      run_all();
    } catch (const Interrupted&) {
    } catch (const SystemError&) {
      results_.hand_on_rest();
      throw;
    }
    results_.hand_on_rest();
  }

 private:
  using Truth = std::shared_ptr<SharedTruth>;

  void run_all() {
    waiting_ = grouped_by_truth(cases_, those_that_can_run());
    if (!options_.simulate_only && !waiting_.empty())
      workers_.prepare_for(cases_[waiting_.front().front()]);
    ask_for_truths();
    while (!results_.is_over()) {
      std::optional<Completion> done = workers_.next();
      if (!done) break;
      if (auto* simulation = std::get_if<SimulationRun>(&done->result))
        on_truth(take(asked_, done->ticket), std::move(*simulation));
      else if (asked_.contains(done->ticket))
        on_measured_truth(take(asked_, done->ticket),
                          std::get<DistributedRun>(std::move(done->result)));
      else
        on_run(take(running_, done->ticket), std::get<DistributedRun>(done->result));
      ask_for_truths();
      results_.report_progress();
    }
  }

  template <class T>
  static T take(std::map<Ticket, T>& map, Ticket ticket) {
    return std::move(map.extract(ticket).mapped());
  }

  // --- Which cases ---

  std::vector<std::size_t> those_that_can_run() {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (const std::string why = why_skipped(cases_[i]); !why.empty())
        results_.finish(i, skipped(cases_[i], why, options_.strict));
      else
        chosen.push_back(i);
    }
    return chosen;
  }

  std::string why_skipped(const Case& c) const {
    if (!c.skip_reason.empty()) return c.skip_reason;
    if (options_.simulate_only)
      return needs_differences(c.scenario->steps) ? "its truth comes from the ranks' own forward "
                                                    "runs, as a call of it has no \"simulate\""
                                                  : "";
    if (c.world_size > kMaxRanks)
      return fmt::format("at most {} ranks can run; --simulate has none", kMaxRanks);
    const Leader* launched = leader();
    if (!launched) return c.device == "cpu" ? why_no_room(c.world_size, room_) : "";
    if (c.world_size <= launched->world().size) return {};
    return fmt::format("it needs {} ranks, and {} has started {}", c.world_size,
                       launched->world().launcher, launched->world().size);
  }

  // --- Their truth ---

  void ask_for_truths() {
    for (; !waiting_.empty() && active_ < kAhead; ++active_) {
      auto truth = std::make_shared<SharedTruth>();
      truth->cases = std::move(waiting_.front());
      truth->unfinished = truth->cases.size();
      waiting_.pop_front();
      truth->asked = first_request(*truth, cases_, options_);
      const Ticket ticket = workers_.ask_truth(truth->asked, cases_[truth->cases.front()]);
      asked_.emplace(ticket, std::move(truth));
    }
  }

  void on_measured_truth(Truth truth, DistributedRun run) {
    const std::string skip = run.error || run.ranks.empty() ? "" : run.ranks.front().skipped;
    if (skip.empty()) return on_truth(std::move(truth), measured(std::move(run)));
    for (const std::size_t i : truth->cases)
      release(*truth, i, skipped(cases_[i], skip, options_.strict));
  }

  void on_truth(Truth truth, SimulationRun run) {
    truth->run = std::move(run);
    const Case& first = cases_[truth->cases.front()];
    if (truth->run.error && truth->run.error->kind == ErrorKind::kSubject)
      return on_unusable_code(*truth, truth->run.error->message);
    std::optional<InvalidProgram> invalid = truth->run.simulation.invalid;
    bool impossible = first.world_size_overridden;
    if (!invalid && !truth->run.error) {
      invalid = check_replicated(truth->asked, first.objective, truth->run.simulation);
      impossible = impossible || first.objective_overridden;
    }
    if (invalid) return on_invalid(*truth, *invalid, impossible);
    if (const std::string why = replace_truth(*truth, first, options_); !why.empty()) {
      for (const std::size_t i : truth->cases) release(*truth, i, skipped(cases_[i], why, true));
      return;
    }
    if (!truth->run.error) truth->expected = expected_values(truth->asked.program, truth->run);
    for (const std::size_t i : truth->cases) {
      if (truth->run.error || options_.simulate_only)
        conclude_from(*truth, i, nullptr);
      else
        start_run(truth, i);
    }
  }

  // Reports the file's own mistake as the user's error. One that only an override makes is a reason
  // to skip.
  void on_invalid(SharedTruth& truth, const InvalidProgram& invalid, bool impossible) {
    const Scenario& scenario = *cases_[truth.cases.front()].scenario;
    if (!impossible && reported_.emplace(scenario.file, invalid.pointer, invalid.message).second)
      listener_.on_invalid({scenario.file, position_of(scenario, invalid.pointer), invalid.pointer,
                            invalid.message, invalid.caret});
    for (const std::size_t i : truth.cases)
      release(truth, i,
              impossible ? std::optional(skipped(cases_[i], invalid.message, options_.strict))
                         : std::nullopt);
  }

  // Returns the place of the value, or of the nearest one around it that the parser noted.
  static SourcePosition position_of(const Scenario& scenario, std::string pointer) {
    for (;; pointer.resize(pointer.rfind('/'))) {
      const auto found = scenario.positions.find(pointer);
      if (found != scenario.positions.end()) return found->second;
      if (pointer.empty()) return {};
    }
  }

  // Reports code that a step calls and that cannot be loaded: the user's error, once for all its
  // cases.
  void on_unusable_code(SharedTruth& truth, const std::string& message) {
    const Scenario& scenario = *cases_[truth.cases.front()].scenario;
    if (reported_.emplace(scenario.file, "", message).second)
      listener_.on_invalid({scenario.file, {}, "", message, ""});
    for (const std::size_t i : truth.cases) release(truth, i, std::nullopt);
  }

  // --- Their runs ---

  void start_run(const Truth& truth, std::size_t i) {
    const Case& c = cases_[i];
    if (unusable_.contains({c.subject, c.python})) return release(*truth, i, std::nullopt);
    const Ticket ticket =
        workers_.ask_run(run_request(c, truth->asked.program), c, truth->expected);
    running_.emplace(ticket, std::pair(truth, i));
  }

  void on_run(const std::pair<Truth, std::size_t>& what, const DistributedRun& run) {
    const auto& [truth, i] = what;
    const Case& c = cases_[i];
    if (!run.error || run.error->kind != ErrorKind::kSubject) return conclude_from(*truth, i, &run);
    // It is the user's mistake, and the same for every case, so no case is worth trying again.
    if (unusable_.emplace(c.subject, c.python).second)
      listener_.on_invalid({c.subject, {}, "", run.error->message, ""});
    release(*truth, i, std::nullopt);
  }

  void conclude_from(SharedTruth& truth, std::size_t i, const DistributedRun* run) {
    release(truth, i, conclude(cases_[i], truth, run, options_, workers_, listener_));
  }

  void release(SharedTruth& truth, std::size_t i, std::optional<CaseResult> result) {
    if (--truth.unfinished == 0) --active_;
    results_.finish(i, std::move(result));
  }

  std::span<const Case> cases_;
  const VerifyOptions& options_;
  VerifyListener& listener_;
  CaseWorkers workers_;
  const RankRoom room_ = room_for_ranks();
  OrderedResults results_;

  std::deque<std::vector<std::size_t>> waiting_;  // cases of each truth not yet asked for
  std::size_t active_ = 0;  // truths asked for of which some case is unfinished
  std::map<Ticket, Truth> asked_;
  std::map<Ticket, std::pair<Truth, std::size_t>> running_;
  std::set<std::tuple<std::string, std::string, std::string>> reported_;  // file, pointer, message
  std::set<std::pair<std::string, std::string>> unusable_;                // subject, python
};

}  // namespace

Verifier::Verifier(std::span<const Case> all, const VerifyOptions& options) : options_(options) {
  RankPrograms programs(all, options.interpreters, options.simulate_only);
  WorkerPoolOptions pool{.rank_commands = programs.commands(),
                         .teams = options.jobs,
                         .mesh_order = options.mesh_order,
                         .imports = programs.imports()};
  if (Leader* launched = leader())
    pool.open_elsewhere = [launched](const std::vector<std::string>& command) {
      return launched->open(command);
    };
  pool.on_loading = [this](const std::string& subject, double seconds) {
    if (listener_) listener_->on_loading(subject, seconds);
  };
  machinery_.reset(new Machinery{std::move(programs), WorkerPool(std::move(pool))});
}

Verifier::~Verifier() = default;

void Verifier::verify(std::span<const Case> cases, VerifyListener& listener) {
  listener_ = &listener;
  Verification(cases, options_, listener, {machinery_->programs, machinery_->pool}).run();
  listener_ = nullptr;
}

void verify(std::span<const Case> cases, const VerifyOptions& options, VerifyListener& listener) {
  Verifier(cases, options).verify(cases, listener);
}

}  // namespace distgrad
