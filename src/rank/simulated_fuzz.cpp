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
#include "gradients/objective_truths.h"
#include "model/objective.h"
#include "rank/simulator.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSumsEvery = 8;  // programs of which every rank's loss is asked for by itself
constexpr auto kTellEvery = std::chrono::milliseconds(100);

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
  for (const Json& name : json.at("dtypes")) job.choices.dtypes.push_back(dtype_named(name.get<std::string>()).value());
  const auto kinds = json.at("kinds").get<std::vector<std::string>>();
  for (const CollectiveTraits& kind : kCollectives)
    if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), kind.name) == kinds.end())
      job.choices.offers[static_cast<std::size_t>(kind.kind)].ops = {};
  return job;
}

struct Failure {
  std::string rule, text;
};

// The gradients of two simulations, of row `row` and combined rows, element by element.
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

// Where they are further apart than twice the bounds; empty where they are not. NaN equals NaN.
std::string difference(const Values& a, const Values& b, const std::vector<Gradient>& bounds, DType dtype, double scale) {
  const Values allowed = values_of(bounds);
  for (std::size_t p = 0; p < a.size(); ++p)
    for (std::size_t e = 0; e < a[p].size(); ++e) {
      const double x = a[p][e], y = b[p][e];
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      if (std::abs(x - y) <= 2 * scale * bound_in_float64(allowed[p][e], dtype)) continue;
      return std::to_string(x) + " and " + std::to_string(y) + ", part " + std::to_string(p) + ", element " + std::to_string(e);
    }
  return {};
}

class Check {
 public:
  explicit Check(SimulateRequest request) : request_(std::move(request)) {}

  std::optional<Failure> run(bool with_sums) {
    request_.with_bounds = false;
    truth_ = simulate(request_);
    if (truth_.invalid) return Failure{"invalid", truth_.invalid->pointer + ": " + truth_.invalid->message};
    if (auto failure = adjoint_rules()) return failure;
    return with_sums ? sums() : std::nullopt;
  }

 private:
  bool is_judged() {
    if (!bounded_) {
      SimulateRequest request = request_;
      request.with_bounds = true;
      bounded_ = simulate(request);
    }
    return bounded_->undecided.empty() && bounded_->forward_only.empty();
  }

  std::optional<Failure> adjoint_rules() {
    SimulateRequest request = request_;
    for (const Step& step : request.program.steps)
      if (step.collective()) request.rules.push_back({step.name, "adjoint"});
    if (request.rules.empty()) return std::nullopt;
    const Simulation replayed = simulate(request);
    if (replayed.invalid) return Failure{"invalid", replayed.invalid->message};
    const Values wanted = values_of(truth_.gradients[0]), observed = values_of(replayed.gradients[0]);
    if (wanted == observed || !is_judged()) return std::nullopt;
    const std::string where = difference(observed, wanted, bounded_->bounds, request.program.dtype, 1);
    if (where.empty()) return std::nullopt;
    return Failure{"adjoint", "the rule `adjoint` and autograd differ: " + where};
  }

  // Row by row: N · mean = sum = Σ rank:k.
  std::optional<Failure> sums() {
    SimulateRequest request = request_;
    const int n = request.program.world_size;
    request.weights = {std::vector<double>(static_cast<std::size_t>(n), 1.0), std::vector<double>(static_cast<std::size_t>(n), 1.0 / n)};
    for (int r = 0; r < n; ++r) {
      request.weights.emplace_back(static_cast<std::size_t>(n), 0.0);
      request.weights.back()[static_cast<std::size_t>(r)] = 1;
    }
    request.with_bounds = true;
    const Simulation rows = simulate(request);
    if (rows.invalid) return Failure{"invalid", rows.invalid->message};
    const Values sum = values_of(rows.gradients[0]), mean = values_of(rows.gradients[1], n);
    Values added = values_of(rows.gradients[2]);
    for (int r = 1; r < n; ++r) {
      const Values one = values_of(rows.gradients[static_cast<std::size_t>(r) + 2]);
      for (std::size_t p = 0; p < added.size(); ++p)
        for (std::size_t e = 0; e < added[p].size(); ++e) added[p][e] += one[p][e];
    }
    // Each of the two sums has roundings of its own on the way, as many as ranks.
    std::string where = difference(mean, sum, rows.bounds, request.program.dtype, 2);
    if (where.empty()) where = difference(added, sum, rows.bounds, request.program.dtype, 2 + n);
    if (where.empty()) return std::nullopt;
    return Failure{"objectives", "the truths of the objectives do not add up: " + where};
  }

  SimulateRequest request_;
  Simulation truth_;
  std::optional<Simulation> bounded_;
};

std::optional<Failure> check_program(const Job& job, std::uint64_t index) {
  const std::string text = fuzz::draw_program(job.choices, job.seed, index).dump();
  try {
    const Scenario scenario = parse_scenario(text, "program");
    SimulateRequest request;
    request.program = program_for(scenario, scenario.world_sizes[0], scenario.dtypes[0]);
    request.weights = {truth_weights(request.program, scenario.objective)};
    return Check(std::move(request)).run(index % kSumsEvery == 0);
  } catch (const InvalidScenario& e) {
    return Failure{"invalid", e.what()};
  } catch (const std::exception& e) {
    return Failure{"exception", e.what()};
  }
}

bool tell(int fd, const Json& line) {
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
  std::signal(SIGINT, SIG_IGN);  // the driver's business
  std::signal(SIGPIPE, SIG_IGN);
  Job job;
  try {
    job = read_job(job_text);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "distgrad-rank: the job cannot be read: %s\n", e.what());
    return 2;
  }
  const auto started = Clock::now();
  auto told = started;
  std::uint64_t done = 0;
  for (std::uint64_t index = job.first; index < job.end; index += job.step, ++done) {
    const auto now = Clock::now();
    if (job.seconds > 0 && now - started > std::chrono::duration<double>(job.seconds)) break;
    if (job.each || now - told > kTellEvery) {
      if (!tell(fd, {{"done", done}, {"next", index}})) return 3;
      told = now;
    }
    if (const auto failure = check_program(job, index))
      if (!tell(fd, {{"failure", index}, {"rule", failure->rule}, {"text", failure->text}})) return 3;
  }
  return tell(fd, {{"done", done}, {"next", job.end}}) ? 0 : 3;
}

}  // namespace distgrad
