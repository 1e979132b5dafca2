#include "cli/verify.h"

#include <fmt/format.h>

#include <algorithm>
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
#include "base/interrupts.h"
#include "base/version.h"
#include "cli/measuring.h"
#include "cli/rank_programs.h"
#include "cli/shared_truth.h"
#include "compare/compare.h"
#include "compare/dispute.h"
#include "diagnose/diagnose.h"
#include "diagnose/verdict.h"
#include "gradients/objective_truths.h"
#include "launched/leader.h"
#include "pool/worker_pool.h"
#include "protocol/board.h"
#include "scenario/cases.h"

namespace distgrad {
namespace {

// Simulations that are asked for, or waited for by a case, at one time: enough that no worker ever
// waits for the driver, and few enough that their tensors fit into memory.
constexpr std::size_t kAhead = 128;
// Changing the world size costs time, so of so many cases those of one size come together. Not of
// all: what is done should be printed soon.
constexpr std::size_t kTogether = 512;

struct Interrupted {};

bool is_expected_to_match(const Case& c) { return c.expected.verdict == "match"; }

}  // namespace

struct Verifier::Machinery {
  RankPrograms programs;
  WorkerPool pool;
};

namespace {

class Verification {
 public:
  Verification(std::span<const Case> cases, const VerifyOptions& options, VerifyListener& listener,
               const RankPrograms& programs, WorkerPool& pool)
      : cases_(cases),
        options_(options),
        listener_(listener),
        outcomes_(cases.size()),
        programs_(programs),
        pool_(pool) {}

  // However it ends, what was finished is handed on.
  void run() {
    try {
      run_all();
    } catch (const Interrupted&) {
    } catch (const SystemError&) {
      hand_on_rest();
      throw;
    }
    hand_on_rest();
  }

 private:
  void run_all() {
    group_by_truth();
    if (!options_.simulate_only && !truths_.empty())
      prepare_for(cases_[truths_.front()->cases.front()]);
    submit_more();
    while (!is_over_) {
      std::optional<Completion> done = pool_.next();
      if (!done) break;
      if (auto* simulation = std::get_if<SimulationRun>(&done->result))
        on_simulation(take(simulations_, done->ticket), std::move(*simulation));
      else
        on_run(done->ticket, std::get<DistributedRun>(std::move(done->result)));
      check_torch();
      submit_more();
      listener_.on_progress(finished_, failed_);
    }
  }

  void prepare_for(const Case& c) {
    pool_.prepare(c.world_size, programs_.of(c), transport_of(c.backend, c.device));
  }

  template <class T>
  static T take(std::map<Ticket, T>& map, Ticket ticket) {
    return std::move(map.extract(ticket).mapped());
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
    if (!launched || c.world_size <= launched->world().size) return {};
    return fmt::format("it needs {} ranks, and {} has started {}", c.world_size,
                       launched->world().launcher, launched->world().size);
  }

  void group_by_truth() {
    std::map<SharedTruthKey, std::shared_ptr<SharedTruth>> by_key;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Case& c = cases_[i];
      if (const std::string why = why_skipped(c); !why.empty()) {
        finish(i, skipped(c, why, options_.strict));
        continue;
      }
      auto& truth = by_key[key_of(c)];
      if (!truth) truths_.push_back(truth = std::make_shared<SharedTruth>());
      truth->cases.push_back(i);
    }
    const auto place = [&](const std::shared_ptr<SharedTruth>& m) {
      const std::size_t first = m->cases.front();
      return std::pair(first / kTogether, cases_[first].world_size);
    };
    std::stable_sort(truths_.begin(), truths_.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
  }

  // What `reference` starts with, at the truth's scale: a sync of "mean" divides later what they
  // leave to it.
  static std::vector<double> reference_weights(Program program, const Objective& objective) {
    for (Input& input : program.inputs) input.sync.clear();
    return backward_weights(program, objective, !has_code(program.steps));
  }

  // That the ranks agree, where the objective says so, takes more rows than one.
  std::vector<std::vector<double>> rows_to_ask(const SharedTruth& truth,
                                               const Objective& objective) const {
    const Program& program = truth.asked.program;
    const bool one_is_enough =
        !options_.every_objective && ranks_that_agree(program, objective).empty() &&
        std::all_of(truth.cases.begin(), truth.cases.end(),
                    [&](std::size_t i) { return is_expected_to_match(cases_[i]); });
    if (one_is_enough) return {truth_weights(program, objective)};
    return weights_to_ask(program, objective);
  }

  void submit_more() {
    for (; !truths_.empty() && active_ < kAhead; ++active_) {
      std::shared_ptr<SharedTruth> truth = std::move(truths_.front());
      truths_.pop_front();
      const Case& first = cases_[truth->cases.front()];
      truth->unfinished = truth->cases.size();
      truth->asked.program = program_for(first);
      truth->asked.weights = rows_to_ask(*truth, first.objective);
      truth->asked.with_bounds =
          options_.bounds_for_all || asks_for_bounds_at_once(truth->asked.program);
      truth->asked.on_gpu = is_on_gpu(first);
      truth->asked.with_differences = options_.with_differences;
      auto run_weights = reference_weights(truth->asked.program, first.objective);
      if (run_weights != truth->asked.weights.front())
        truth->asked.run_weights = {std::move(run_weights)};
      const Ticket ticket = ask(*truth, first);
      simulations_.emplace(ticket, std::move(truth));
    }
  }

  Ticket ask(const SharedTruth& truth, const Case& c) {
    if (!needs_differences(truth.asked.program.steps))
      return pool_.simulate(truth.asked, c.timeout_s, QueuePosition::kLast,
                            programs_.simulator_of(c));
    return pool_.run(measuring_request(c, truth.asked), kMeasuringTakes * c.timeout_s,
                     programs_.of(c));
  }

  void on_simulation(std::shared_ptr<SharedTruth> truth, SimulationRun run) {
    truth->run = std::move(run);
    const Case& first = cases_[truth->cases.front()];
    if (truth->run.error && truth->run.error->kind == "subject")
      return on_unusable_code(*truth, truth->run.error->message);
    std::optional<InvalidProgram> invalid = truth->run.simulation.invalid;
    bool impossible = first.world_size_overridden;
    if (!invalid && !truth->run.error) {
      invalid = check_replicated(truth->asked, first.objective, truth->run.simulation);
      impossible = impossible || first.objective_overridden;
    }
    if (invalid) return on_invalid(*truth, *invalid, impossible);
    if (const std::string why = replace_truth(*truth, first); !why.empty()) {
      for (const std::size_t i : truth->cases) release(*truth, i, skipped(cases_[i], why, true));
      return;
    }
    for (const std::size_t i : truth->cases) {
      if (truth->run.error || options_.simulate_only)
        conclude(i, *truth, nullptr);
      else
        start_run(truth, i);
    }
  }

  std::string replace_truth(SharedTruth& truth, const Case& c) {
    if (!options_.replace_truth || truth.run.error || calls_code(c)) return "";
    return options_.replace_truth(c, truth.asked.program, truth.run.simulation);
  }

  void start_run(const std::shared_ptr<SharedTruth>& truth, std::size_t i) {
    const Case& c = cases_[i];
    if (unusable_.contains({c.subject, c.python})) return release(*truth, i, std::nullopt);
    const Ticket ticket =
        pool_.run(run_request(c, truth->asked.program), c.timeout_s, programs_.of(c));
    runs_.emplace(ticket, std::pair(truth, i));
  }

  static RunRequest run_request(const Case& c, const Program& program) {
    return {program,
            c.subject,
            c.backend,
            backward_weights(program, c.objective, divides_replicated(c, program)),
            c.device == "cpu" ? "" : c.device,
            {}};
  }

  // The file's own mistake is the user's error; one that only an override makes is a reason to
  // skip.
  void on_invalid(SharedTruth& truth, const InvalidProgram& invalid, bool impossible) {
    const Scenario& scenario = *cases_[truth.cases.front()].scenario;
    if (!impossible && told_.emplace(scenario.file, invalid.pointer, invalid.message).second)
      listener_.on_invalid({scenario.file, position_of(scenario, invalid.pointer), invalid.pointer,
                            invalid.message, invalid.caret});
    for (const std::size_t i : truth.cases)
      release(truth, i,
              impossible ? std::optional(skipped(cases_[i], invalid.message, options_.strict))
                         : std::nullopt);
  }

  // Of the value, or of the nearest one around it that the parser noted.
  static SourcePosition position_of(const Scenario& scenario, std::string pointer) {
    for (;; pointer.resize(pointer.rfind('/'))) {
      const auto found = scenario.positions.find(pointer);
      if (found != scenario.positions.end()) return found->second;
      if (pointer.empty()) return {};
    }
  }

  // Code that a step calls and that cannot be loaded: the user's error, told once, of all its
  // cases.
  void on_unusable_code(SharedTruth& truth, const std::string& message) {
    const Scenario& scenario = *cases_[truth.cases.front()].scenario;
    if (told_.emplace(scenario.file, "", message).second)
      listener_.on_invalid({scenario.file, {}, "", message, ""});
    for (const std::size_t i : truth.cases) release(truth, i, std::nullopt);
  }

  void on_run(Ticket ticket, DistributedRun run) {
    if (!simulations_.contains(ticket)) return on_run(take(runs_, ticket), run);
    std::shared_ptr<SharedTruth> truth = take(simulations_, ticket);
    const std::string skip = run.error || run.ranks.empty() ? "" : run.ranks.front().skipped;
    if (skip.empty()) return on_simulation(std::move(truth), measured(std::move(run)));
    for (const std::size_t i : truth->cases)
      release(*truth, i, skipped(cases_[i], skip, options_.strict));
  }

  void on_run(std::pair<std::shared_ptr<SharedTruth>, std::size_t> what,
              const DistributedRun& run) {
    const Case& c = cases_[what.second];
    if (!run.error || run.error->kind != "subject") return conclude(what.second, *what.first, &run);
    // The user's mistake, and the same for every case: no case is worth trying again.
    if (unusable_.emplace(c.subject, c.python).second)
      listener_.on_invalid({c.subject, {}, "", run.error->message, ""});
    release(*what.first, what.second, std::nullopt);
  }

  // Without a run the simulation is judged alone.
  void conclude(std::size_t i, SharedTruth& truth, const DistributedRun* run) {
    const Case& c = cases_[i];
    const SimulationRun& simulated = truth.run;
    if (simulated.error) return release(truth, i, failed(c, *simulated.error, simulated.elapsed_s));
    Outcome outcome;
    const SimulateRequest* asked = &truth.asked;
    outcome.simulation = &simulated.simulation;
    outcome.program = &truth.asked.program;
    outcome.run = run;
    outcome.elapsed_s = run ? run->elapsed_s : simulated.elapsed_s;
    CaseComparison comparison;
    if (!run || is_complete(*run)) {
      comparison = compare(c, truth.asked, simulated.simulation, run);
      if (run && !comparison.equal() && ask_for_bounds(truth, c))
        comparison = compare(c, truth.asked, simulated.simulation, run);
      const bool is_told = !comparison.gradients_equal() || !is_expected_to_match(c);
      if (run && is_told && ask_for_every_rank(truth, c))
        comparison = compare(c, truth.asked, simulated.simulation, run);
      if (!run) listener_.on_truth(c, truth.asked.program, simulated.simulation, comparison);
      outcome.comparison = &comparison;
      if (run && calls_code(c) && !comparison.equal()) {
        outcome.dispute = dispute_of(c, truth, *run, comparison);
        if (outcome.dispute.empty()) {
          asked = &intended(truth).asked;
          outcome.simulation = &intended(truth).simulation;
          comparison = compare(c, *asked, *outcome.simulation, run);
        }
      }
      if (outcome.dispute.empty())
        outcome.findings = findings(c, *asked, *outcome.simulation, comparison);
    }
    const CaseComparison* compared = outcome.comparison;
    const Simulation& truth = *outcome.simulation;
    CaseResult result = judge(c, std::move(outcome), options_.strict);
    CaseMachine machine(*this, c, *asked);
    listener_.on_conclusion({c, *asked, truth, run, compared, machine, result});
    release(truth, i, std::move(result));
  }

  // The case's simulators and ranks, for who wants to know more of it.
  class CaseMachine : public Machine {
   public:
    CaseMachine(Verification& all, const Case& c, const SimulateRequest& asked)
        : all_(all), case_(c), program_(asked.program) {}

    Simulation simulate(const SimulateRequest& request) override {
      SimulateRequest bounded_alike = request;
      bounded_alike.on_gpu = is_on_gpu(case_);
      return all_.simulate_now(bounded_alike, case_).simulation;
    }

    std::optional<DistributedRun> observe() override {
      RunRequest request = run_request(case_, program_);
      request.observe = true;
      return all_.run_now(case_, request);
    }

    std::optional<DistributedRun> drive(const Program& program, const Drive& drive) override {
      RunRequest request = run_request(case_, program_);
      request.program = program;
      request.drive = drive;
      return all_.run_now(case_, request);
    }

   private:
    Verification& all_;
    const Case& case_;
    const Program& program_;
  };

  // Why a program that calls code, and whose gradients are not the truth, is nevertheless not
  // accused; else empty.
  std::string dispute_of(const Case& c, const SharedTruth& truth, const DistributedRun& run,
                         const CaseComparison& comparison) {
    std::string why = dispute(c, truth.asked, truth.run.simulation, run, comparison);
    if (!why.empty() || comparison.equal() || !could_be_rounding(c, comparison)) return why;
    return is_right_in_float64(c, truth) ? dispute_about_rounding(c.dtype, comparison) : "";
  }

  bool is_right_in_float64(Case c, const SharedTruth& truth) {
    c.dtype = DType::kFloat64;
    SimulateRequest request = truth.asked;
    request.program.dtype = c.dtype;
    const SimulationRun truth = simulate_now(request, c);
    if (truth.error || truth.simulation.invalid) return false;
    const auto run = run_now(c, run_request(c, request.program));
    return run && is_complete(*run) && compare(c, request, truth.simulation, &*run).equal();
  }

  static const IntendedTruth& intended(SharedTruth& truth) {
    if (!truth.intended) truth.intended = as_intended(truth.asked, truth.run.simulation);
    return *truth.intended;
  }

  std::vector<Finding> findings(const Case& c, const SimulateRequest& asked,
                                const Simulation& simulation, const CaseComparison& comparison) {
    CaseMachine machine(*this, c, asked);
    if (!options_.simulate_only) return diagnose({c, asked, simulation, comparison}, &machine);
    CaseComparison guards = comparison;  // no gradients were observed that could be explained
    guards.gradients.clear();
    return diagnose({c, asked, simulation, guards}, nullptr);
  }

  // Each rank's loss by itself, so that a diagnosis knows every objective; false where that is
  // known.
  bool ask_for_every_rank(SharedTruth& truth, const Case& c) {
    if (needs_differences(truth.asked.program.steps))
      return false;  // differences give every rank's anyway
    auto weights = weights_to_ask(truth.asked.program, c.objective, Detail::kEveryRank);
    if (weights.size() <= truth.asked.weights.size()) return false;
    SimulateRequest request = truth.asked;
    request.weights = std::move(weights);
    return ask_again(truth, std::move(request), c);
  }

  // What a large program's truth is uncertain by; false where that is known.
  bool ask_for_bounds(SharedTruth& truth, const Case& c) {
    if (truth.asked.with_bounds || calls_code(c)) return false;
    SimulateRequest request = truth.asked;
    request.with_bounds = true;
    return ask_again(truth, std::move(request), c);
  }

  bool ask_again(SharedTruth& truth, SimulateRequest request, const Case& c) {
    SimulationRun run = simulate_now(request, c);
    if (run.error || run.simulation.invalid) return false;  // the few rows do, too
    truth.asked = std::move(request);
    truth.run = std::move(run);
    replace_truth(truth, c);  // which it could before, so it can
    return true;
  }

  // Code that a program calls is simulated in its interpreter; a driven call is torch's own.
  int simulator_for(const SimulateRequest& request, const Case& c) const {
    return has_code(request.program.steps) ? programs_.simulator_of(c) : 0;
  }

  static SimulationRun cannot_be_replayed() {
    SimulationRun run;
    run.simulation.invalid = InvalidProgram{"", "its truth was measured on the ranks", ""};
    return run;
  }

  // Before all that waits.
  SimulationRun simulate_now(const SimulateRequest& request, const Case& c) {
    const bool measures = needs_differences(request.program.steps);
    if (measures && is_replay(request)) return cannot_be_replayed();
    std::optional<Completion> done =
        pool_.wait(measures ? pool_.run(measuring_request(c, request),
                                        kMeasuringTakes * c.timeout_s, programs_.of(c))
                            : pool_.simulate(request, c.timeout_s, QueuePosition::kNext,
                                             simulator_for(request, c)));
    if (!done) throw Interrupted();
    SimulationRun run = measures ? measured(std::get<DistributedRun>(std::move(done->result)))
                                 : std::get<SimulationRun>(std::move(done->result));
    // For a replay: the hypothesis could not be tried.
    if (run.error) run.simulation.invalid = InvalidProgram{"", run.error->message, ""};
    return run;
  }

  // Behind the runs that wait already, as those are what the ranks have been handed.
  std::optional<DistributedRun> run_now(const Case& c, const RunRequest& request) {
    std::optional<Completion> done = pool_.wait(pool_.run(request, c.timeout_s, programs_.of(c)));
    if (!done) throw Interrupted();
    return std::get<DistributedRun>(std::move(done->result));
  }

  // What the ranks run must be the torch that this was built with: C++ has no stable interface to
  // it.
  void check_torch() {
    if (torch_is_checked_ || kTorchVersion.empty()) return;
    torch_is_checked_ = true;
    const std::string version = pool_.torch_version();
    const std::string built(kTorchVersion.substr(0, kTorchVersion.find('+')));
    if (version.substr(0, version.find('+')) != built)
      throw SystemError("distgrad was built with torch " + built + ", but " + rank_executable() +
                        " runs with torch " + version + "; build it again");
  }

  void release(SharedTruth& truth, std::size_t i, std::optional<CaseResult> result) {
    if (--truth.unfinished == 0) --active_;
    finish(i, std::move(result));
  }

  static bool is_failure(const CaseResult& r) { return r.broken || r.as_expected == false; }

  // What was finished out of order, where the run ends before what comes first.
  void hand_on_rest() {
    for (; !is_over_ && next_ < outcomes_.size(); ++next_)
      if (outcomes_[next_] && *outcomes_[next_]) listener_.on_result(std::move(**outcomes_[next_]));
  }

  // What is finished is handed on in the order of the cases. Nothing: the case was invalid.
  void finish(std::size_t i, std::optional<CaseResult> result) {
    if (result && is_failure(*result)) ++failed_;
    ++finished_;
    outcomes_[i] = std::move(result);
    for (; !is_over_ && next_ < outcomes_.size() && outcomes_[next_].has_value(); ++next_) {
      if (!*outcomes_[next_]) continue;
      is_over_ = options_.fail_fast && is_failure(**outcomes_[next_]);
      listener_.on_result(std::move(**outcomes_[next_]));
      outcomes_[next_]->reset();
    }
  }

  std::span<const Case> cases_;
  const VerifyOptions& options_;
  VerifyListener& listener_;

  std::deque<std::shared_ptr<SharedTruth>> truths_;  // not yet asked for
  std::size_t active_ = 0;                           // asked for, and not all cases finished
  std::map<Ticket, std::shared_ptr<SharedTruth>> simulations_;
  std::map<Ticket, std::pair<std::shared_ptr<SharedTruth>, std::size_t>> runs_;
  std::set<std::tuple<std::string, std::string, std::string>> told_;  // file, pointer, message

  std::vector<std::optional<std::optional<CaseResult>>> outcomes_;
  std::size_t next_ = 0;  // the first that was not handed on
  std::size_t finished_ = 0;
  std::size_t failed_ = 0;
  bool is_over_ = false;  // fail_fast: the rest is let be

  std::set<std::pair<std::string, std::string>> unusable_;  // subject, python

  const RankPrograms& programs_;
  WorkerPool& pool_;
  bool torch_is_checked_ = false;
};

}  // namespace

Verifier::Verifier(std::span<const Case> all, const VerifyOptions& options) : options_(options) {
  RankPrograms programs(all, options.interpreters, options.simulate_only);
  WorkerPoolOptions pool{.rank_commands = programs.commands(), .teams = options.jobs};
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
  Verification(cases, options_, listener, machinery_->programs, machinery_->pool).run();
  listener_ = nullptr;
}

void verify(std::span<const Case> cases, const VerifyOptions& options, VerifyListener& listener) {
  Verifier(cases, options).verify(cases, listener);
}

}  // namespace distgrad
