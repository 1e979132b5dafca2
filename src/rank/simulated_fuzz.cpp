#include "rank/simulated_fuzz.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "fuzz/generator.h"
#include "judge/closeness.h"
#include "judge/objective_truths.h"
#include "model/distance.h"
#include "model/objective.h"
#include "rank/call_check.h"
#include "rank/simulator.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// One of this many blocks of programs is replayed, or has every rank's loss asked for by itself.
// Blocks give every process its share, since its programs lie a number of cores apart.
constexpr std::uint64_t kBlock = 64, kReplaysEvery = 8, kSumsEvery = 16;
constexpr auto kSayEvery = std::chrono::milliseconds(100);

struct Job {
  std::uint64_t seed = 0, first = 0, step = 1, end = 0;
  double seconds = 0;
  bool each = false;
  fuzz::Choices choices = fuzz::default_choices();
};

Job read_job(const std::string& text) {
  const Json json = Json::parse(text);
  Job job;
  job.seed = json.at("seed").get<std::uint64_t>();
  job.first = json.at("first").get<std::uint64_t>();
  job.step = json.at("step").get<std::uint64_t>();
  job.end = json.at("end").get<std::uint64_t>();
  job.seconds = json.at("seconds").get<double>();
  job.each = json.at("each").get<bool>();
  job.choices.world_sizes = json.at("world_sizes").get<std::vector<int>>();
  job.choices.objectives = json.at("objectives").get<std::vector<std::string>>();
  job.choices.dtypes.clear();
  for (const Json& name : json.at("dtypes"))
    job.choices.dtypes.push_back(dtype_named(name.get<std::string>()).value());
  const auto kinds = json.at("kinds").get<std::vector<std::string>>();
  for (const CollectiveTraits& kind : kCollectives)
    if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), kind.name) == kinds.end())
      job.choices.offers[static_cast<std::size_t>(kind.kind)].ops = {};
  return job;
}

// Holds a simulation's gradients, of one row or of combined rows, for comparison by element.
using Values = std::vector<std::vector<double>>;  // by input and part

Values values_of(const std::vector<Gradient>& gradients, double factor = 1) {
  Values values;
  for (const Gradient& gradient : gradients)
    for (const std::optional<Array>& part : gradient.parts) {
      values.emplace_back(part->values().begin(), part->values().end());
      for (double& v : values.back()) v *= factor;
    }
  return values;
}

// Allows a rounding or two for each of a program's few dozen operators. A wrong derivative is off
// by more.
constexpr double kCloseGradients = 1e-12;

// Describes the first element that differs by more than a few roundings of the tensor's largest
// element and, if given, by more than `allowed`. `terms` has, by part, the largest term added up.
// NaN equals NaN. Returns "" if no element differs.
std::string difference(const Values& a, const Values& b, const Values* allowed = nullptr,
                       const std::vector<double>& terms = {}) {
  for (std::size_t p = 0; p < a.size(); ++p) {
    const double of_terms = terms.empty() ? 0 : terms[p];
    const double close =
        kCloseGradients * std::max({largest_magnitude(a[p]), largest_magnitude(b[p]), of_terms});
    for (std::size_t e = 0; e < a[p].size(); ++e) {
      const double x = a[p][e], y = b[p][e];
      if (same_value(x, y) || std::abs(x - y) <= close) continue;
      if (allowed && std::abs(x - y) <= 2 * (*allowed)[p][e]) continue;
      char text[128];
      std::snprintf(text, sizeof text, "%.17g and %.17g, part %zu, element %zu", x, y, p, e);
      return text;
    }
  }
  return {};
}

class Check {
 public:
  explicit Check(SimulateRequest request) : request_(std::move(request)) {}

  std::optional<SimulatedFailure> run(std::uint64_t index) {
    request_.with_bounds = false;
    const bool adds_up = index / kBlock % kSumsEvery == 0;
    SimulateRequest request = request_;
    if (adds_up) add_rows(request);
    std::vector<SimulatedCall> calls;
    truth_ = simulate_with_calls(request, calls);
    if (truth_.invalid)
      return SimulatedFailure{"invalid", truth_.invalid->pointer + ": " + truth_.invalid->message};
    for (const SimulatedCall& call : calls)
      if (const std::string where = difference_from_arithmetic(call); !where.empty())
        return SimulatedFailure{"adjoint", "the simulation and plain arithmetic differ: step " +
                                               call.step->name + ", " + where};
    if (index / kBlock % kReplaysEvery == 0)
      if (auto failure = adjoint_rules()) return failure;
    return adds_up ? sums() : std::nullopt;
  }

 private:
  std::optional<SimulatedFailure> adjoint_rules() {
    SimulateRequest request = request_;
    for (const Step& step : request.program.steps)
      if (step.collective()) request.rules.push_back({step.name, "adjoint"});
    if (request.rules.empty()) return std::nullopt;
    const Simulation replayed = simulate(request);
    if (replayed.invalid) return SimulatedFailure{"invalid", replayed.invalid->message};
    const Values wanted = values_of(truth_.gradients[0]),
                 observed = values_of(replayed.gradients[0]);
    if (difference(observed, wanted).empty()) return std::nullopt;
    return judged(observed, wanted);
  }

  // Accepts what the error analysis explains: cancellation, and branches that rounding decides.
  std::optional<SimulatedFailure> judged(const Values& observed, const Values& wanted) const {
    const std::optional<Values> allowed = bounds(request_);
    if (!allowed) return std::nullopt;
    const std::string where = difference(observed, wanted, &*allowed);
    if (where.empty()) return std::nullopt;
    return SimulatedFailure{"adjoint", "the rule `adjoint` and autograd differ: " + where};
  }

  // Returns float64's bounds of the first row, or nothing if rounding decides a branch, or a NaN is
  // among the operands of min or max.
  static std::optional<Values> bounds(SimulateRequest request) {
    request.with_bounds = true;
    const Simulation bounded = simulate(request);
    if (!bounded.undecided.empty() || !bounded.forward_only.empty()) return std::nullopt;
    Values allowed = values_of(bounded.bounds);
    for (std::vector<double>& part : allowed)
      for (double& bound : part) bound = bound_in_float64(bound, request.program.dtype);
    return allowed;
  }

  // Adds sum, mean and every rank:k after the declared objective.
  static void add_rows(SimulateRequest& request) {
    const int n = request.program.world_size;
    request.weights.emplace_back(static_cast<std::size_t>(n), 1.0);
    request.weights.emplace_back(static_cast<std::size_t>(n), 1.0 / n);
    for (int r = 0; r < n; ++r) {
      request.weights.emplace_back(static_cast<std::size_t>(n), 0.0);
      request.weights.back()[static_cast<std::size_t>(r)] = 1;
    }
  }

  // Checks row by row that N · mean = sum = Σ rank:k.
  std::optional<SimulatedFailure> sums() {
    const int n = request_.program.world_size;
    const auto row = [&](std::size_t i, double factor = 1) {
      return values_of(truth_.gradients[i + 1], factor);
    };
    const Values sum = row(0), mean = row(1, n);
    Values added = sum;
    std::vector<double> terms(sum.size(), 0.0);
    for (std::vector<double>& part : added) std::fill(part.begin(), part.end(), 0.0);
    for (int r = 0; r < n; ++r) {
      const Values one = row(static_cast<std::size_t>(r) + 2);
      for (std::size_t p = 0; p < added.size(); ++p) {
        terms[p] = std::max(terms[p], largest_magnitude(one[p]));
        for (std::size_t e = 0; e < added[p].size(); ++e) added[p][e] += one[p][e];
      }
    }
    const auto where_apart = [&](const Values* allowed) {
      const std::string where = difference(mean, sum, allowed, terms);
      return where.empty() ? difference(added, sum, allowed, terms) : where;
    };
    if (where_apart(nullptr).empty()) return std::nullopt;
    SimulateRequest bounded = request_;
    bounded.weights = {std::vector<double>(static_cast<std::size_t>(n), 1.0)};
    const std::optional<Values> allowed = bounds(std::move(bounded));
    const std::string where = allowed ? where_apart(&*allowed) : "";
    if (where.empty()) return std::nullopt;
    return SimulatedFailure{"objectives", "the truths of the objectives do not add up: " + where};
  }

  SimulateRequest request_;
  Simulation truth_;
};

}  // namespace

std::optional<SimulatedFailure> check_simulated(const std::string& scenario_text,
                                                std::uint64_t index) {
  try {
    const Scenario scenario = parse_scenario(scenario_text, "program");
    SimulateRequest request;
    request.program = program_for(scenario, scenario.world_sizes[0], scenario.dtypes[0]);
    request.weights = {truth_weights(request.program, scenario.objective)};
    return Check(std::move(request)).run(index);
  } catch (const InvalidScenario& e) {
    return SimulatedFailure{"invalid", e.what()};
  } catch (const std::exception& e) {
    return SimulatedFailure{"exception", e.what()};
  }
}

namespace {

bool say(int fd, const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::write(fd, text.data() + sent, text.size() - sent);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

int run_simulated_fuzz(const std::string& job_text, int fd) {
  at::set_num_threads(1);
  std::signal(SIGINT, SIG_IGN);  // the driver handles it
  std::signal(SIGPIPE, SIG_IGN);
  Job job;
  try {
    job = read_job(job_text);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "distgrad-rank: the job cannot be read: %s\n", e.what());
    return 2;
  }
  const auto started = Clock::now();
  auto last = started;
  std::uint64_t done = 0;
  for (std::uint64_t index = job.first; index < job.end; index += job.step, ++done) {
    const auto now = Clock::now();
    if (job.seconds > 0 && now - started > std::chrono::duration<double>(job.seconds)) break;
    if (job.each || now - last > kSayEvery) {
      if (!say(fd, {{"done", done}, {"next", index}})) return 3;
      last = now;
    }
    if (const auto failure =
            check_simulated(fuzz::draw_program(job.choices, job.seed, index).dump(), index))
      if (!say(fd, {{"failure", index}, {"rule", failure->rule}, {"text", failure->text}}))
        return 3;
  }
  return say(fd, {{"done", done}, {"next", job.end}}) ? 0 : 3;
}

}  // namespace distgrad
