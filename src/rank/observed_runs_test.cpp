// Observed runs on real ranks, over every case of scenarios/ that ranks in C++ can run over Gloo:
// what is observed changes nothing, and of `reference` it is what the simulation says.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "model/objective.h"
#include "pool/worker_pool.h"
#include "rank/simulator.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

std::list<Scenario> all_scenarios() {
  std::vector<std::string> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(DISTGRAD_SOURCE_DIR) / "scenarios"))
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  std::list<Scenario> scenarios;
  for (const std::string& file : files) scenarios.push_back(load_scenario(file));
  return scenarios;
}

// By world size, since changing it costs time.
std::vector<Case> cases_of(const std::list<Scenario>& scenarios, const std::string& torch) {
  std::vector<Case> cases;
  for (const Scenario& scenario : scenarios)
    for (Case& c : expand(scenario, {}, torch))
      if (c.skip_reason.empty() && c.backend == "gloo" && c.device == "cpu" &&
          !has_python_ranks(c) && !calls_code(c))
        cases.push_back(std::move(c));
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return a.world_size < b.world_size; });
  return cases;
}

RunRequest run_of(const Case& c, bool observe) {
  RunRequest request;
  request.program = program_for(c);
  request.subject = c.subject;
  request.backend = c.backend;
  request.weights =
      backward_weights(request.program, c.objective, divides_replicated(c, request.program));
  request.observe = observe;
  return request;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same(const Array& a, const Array& b, const char* what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  for (std::int64_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same_bits(a[i], b[i])) << what << ": " << a[i] << ", " << b[i];
}

void expect_same(const std::vector<std::optional<Array>>& a,
                 const std::vector<std::optional<Array>>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].has_value(), b[i].has_value()) << what;
    if (a[i]) expect_same(*a[i], *b[i], what);
  }
}

void expect_same(const RankResult& plain, const RankResult& observed) {
  EXPECT_TRUE(same_bits(plain.loss, observed.loss)) << plain.loss << ", " << observed.loss;
  EXPECT_EQ(plain.loss_shape, observed.loss_shape);
  expect_same(plain.gradients, observed.gradients, "gradient");
  ASSERT_EQ(plain.steps.size(), observed.steps.size());
  for (std::size_t i = 0; i < plain.steps.size(); ++i)
    expect_same(plain.steps[i], observed.steps[i], "step");
  EXPECT_EQ(plain.warnings, observed.warnings);
  EXPECT_EQ(plain.composed, observed.composed);
  EXPECT_EQ(plain.skipped, observed.skipped);
}

std::vector<const Step*> collective_steps(const Program& program) {
  std::vector<const Step*> steps;
  for (const Step& step : program.steps)
    if (step.collective()) steps.push_back(&step);
  return steps;
}

bool has_sync(const Program& program) {
  return std::any_of(program.inputs.begin(), program.inputs.end(),
                     [](const Input& i) { return !i.sync.empty(); });
}

// What is reported of every call, whatever the subject.
void expect_whole(const Program& program, const RankResult& rank) {
  const auto steps = collective_steps(program);
  ASSERT_EQ(rank.observed.size(), steps.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const ObservedCall& call = rank.observed[s];
    EXPECT_EQ(call.step, steps[s]->name);
    EXPECT_EQ(call.operand_strides.size(), call.operand.shape().size());
    if (call.given) {
      EXPECT_EQ(call.given->shape(), call.operand.shape()) << call.step;
      EXPECT_TRUE(call.cotangent) << call.step << " gives what never arrived";
    }
    if (!call.cotangent) continue;
    EXPECT_EQ(call.cotangent->shape(), rank.steps[s].shape()) << call.step;
    EXPECT_EQ(call.cotangent_strides.size(), call.cotangent->shape().size());
    EXPECT_FALSE(call.cotangent_after) << "no subject here writes into a cotangent";
  }
  EXPECT_EQ(rank.shares.size(), rank.gradients.size());
  if (!has_sync(program)) expect_same(rank.shares, rank.gradients, "share");
}

// Whether the simulation has no cotangent there: of zeros that a call leaves off its root, and of
// values that need no gradient (a count of what is positive), which are 0 on every rank. What
// arrives there counts for nothing.
bool counts_for_nothing(const Program& program, const StepValue& cotangent, int rank) {
  const auto steps = collective_steps(program);
  const Step& step =
      **std::ranges::find_if(steps, [&](const Step* s) { return s->name == cotangent.step; });
  const CollectiveCall& call = *step.collective();
  const int place =
      call.group.empty() ? rank : program.group_named(call.group)->place_of(rank).second;
  if (call.kind == CollectiveKind::kReduce || call.kind == CollectiveKind::kGather)
    return place != call.root;
  if (call.kind == CollectiveKind::kSendRecv)
    return std::ranges::none_of(call.pairs, [&](const auto& pair) { return pair.second == place; });
  return std::ranges::all_of(cotangent.by_rank, [](const Array& x) {
    return std::ranges::all_of(x.values(), [](double v) { return v == 0; });
  });
}

// How many elements were compared that are not 0.
int expect_simulated(const Case& c, const Program& program, const std::vector<double>& weights,
                     const DistributedRun& run) {
  SimulateRequest request;
  request.program = program;
  request.weights = {weights};
  request.with_cotangents = true;
  request.with_guards = false;
  const Simulation truth = simulate(request);
  if (truth.invalid || !truth.undecided.empty() || !truth.forward_only.empty()) return 0;
  int compared = 0;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const ObservedCall& call : run.ranks[r].observed) {
      const auto value = std::find_if(truth.cotangents.begin(), truth.cotangents.end(),
                                      [&](const StepValue& v) { return v.step == call.step; });
      if (value == truth.cotangents.end()) return ADD_FAILURE() << call.step, 0;
      if (counts_for_nothing(program, *value, static_cast<int>(r))) continue;
      const Array &right = value->by_rank[r], &bound = value->bound[r];
      for (std::int64_t i = 0; i < right.size(); ++i) {
        const double seen = call.cotangent ? (*call.cotangent)[i] : 0;
        if (std::isnan(seen) && std::isnan(right[i])) continue;
        EXPECT_TRUE(seen == right[i] || std::abs(seen - right[i]) <= bound[i])
            << c.id << ", rank " << r << ", step " << call.step << ", element " << i << ": " << seen
            << ", right " << right[i] << " within " << bound[i];
        compared += seen != 0;
      }
    }
  return compared;
}

struct Submitted {
  const Case* which;
  Program program;
  std::vector<double> weights;
  Ticket plain, observed;
};

TEST(ObservedRuns, ChangeNothingAndReportWhatIsThere) {
  at::set_num_threads(1);
  WorkerPool pool({.rank_commands = {{std::string(DISTGRAD_BIN_DIR) + "/distgrad-rank"}}});
  const std::list<Scenario> scenarios = all_scenarios();
  const std::vector<Case> cases = cases_of(scenarios, pool.torch_version());
  std::vector<Submitted> all;
  for (const Case& c : cases) {
    const RunRequest plain = run_of(c, false), observed = run_of(c, true);
    all.push_back({&c, plain.program, plain.weights, pool.run(plain, 30), pool.run(observed, 30)});
  }
  int calls = 0, compared = 0;
  for (const Submitted& s : all) {
    SCOPED_TRACE(s.which->id);
    const auto plain = std::get<DistributedRun>(pool.wait(s.plain).value().result);
    const auto observed = std::get<DistributedRun>(pool.wait(s.observed).value().result);
    ASSERT_EQ(plain.error.has_value(), observed.error.has_value())
        << (plain.error ? plain.error : observed.error)->message;
    if (plain.error) {
      EXPECT_EQ(plain.error->kind, observed.error->kind);
      continue;
    }
    const bool is_told = s.program.loss.text.find("squared_gradient_norm") == std::string::npos;
    for (std::size_t r = 0; r < plain.ranks.size(); ++r) {
      SCOPED_TRACE("rank " + std::to_string(r));
      expect_same(plain.ranks[r], observed.ranks[r]);
      EXPECT_TRUE(plain.ranks[r].observed.empty() && plain.ranks[r].shares.empty());
      if (!is_told || !observed.ranks[r].skipped.empty()) {
        EXPECT_TRUE(observed.ranks[r].observed.empty() && observed.ranks[r].shares.empty());
        continue;
      }
      expect_whole(s.program, observed.ranks[r]);
      calls += static_cast<int>(observed.ranks[r].observed.size());
    }
    if (s.which->subject == "reference" && is_told)
      compared += expect_simulated(*s.which, s.program, s.weights, observed);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(calls, 4000);
  EXPECT_GT(compared, 10000);
  std::printf("%zu cases, %d calls, %d cotangents' elements\n", all.size(), calls, compared);
}

// Operators of a user's library (tests/operators).
TEST(ObservedRuns, SeeWhatALibraryGives) {
  WorkerPool pool({.rank_commands = {{std::string(DISTGRAD_BIN_DIR) + "/distgrad-rank"}}});
  RunRequest request;
  Program& program = request.program;
  program.world_size = 3;
  program.groups = {{"part", {{2, 0}, {1}}, false}};
  Input x;
  x.name = "x";
  x.value = std::vector<Array>{Array({2, 2}, {1, 2, 3, 4}), Array({2, 2}, {-1, 5, 0, 2}),
                               Array({2, 2}, {3, 3, 1, 7})};
  x.layout = {{"", Layout{}}};
  program.inputs = {x};
  CollectiveCall call;
  call.operand.text = "x * (rank + 1)";
  call.group = "part";
  program.steps = {{"y", "", call}};
  program.loss.text = "(y.t() * y * (rank + 2)).sum() + x.sum() * 10";
  request.backend = "gloo";
  request.weights = {1, 1, 1};
  for (const std::string name : {"halved", "reduce_from_region", "in_memory_order"}) {
    SCOPED_TRACE(name);
    request.subject = "library:" DISTGRAD_BIN_DIR "/../tests/example_operators.so:example::" + name;
    request.observe = false;
    const auto plain = std::get<DistributedRun>(pool.wait(pool.run(request, 30)).value().result);
    request.observe = true;
    const auto run = std::get<DistributedRun>(pool.wait(pool.run(request, 30)).value().result);
    ASSERT_FALSE(run.error) << run.error->message;
    for (std::size_t r = 0; r < 3; ++r) {
      expect_same(plain.ranks[r], run.ranks[r]);
      const ObservedCall& seen = run.ranks[r].observed.at(0);
      ASSERT_TRUE(seen.cotangent && seen.given);
      for (std::int64_t i = 0; i < 4; ++i) {
        double sum = 0;
        for (const std::size_t other : {std::size_t{0}, std::size_t{1}, std::size_t{2}})
          if ((other == 1) == (r == 1)) sum += (*run.ranks[other].observed[0].cotangent)[i];
        if (name == "halved") {
          EXPECT_EQ((*seen.given)[i], sum / 2);
        }
        if (name == "reduce_from_region") {
          EXPECT_EQ((*seen.given)[i], (*seen.cotangent)[i]);
        }
        EXPECT_EQ((*run.ranks[r].gradients[0])[i],
                  (*seen.given)[i] * static_cast<double>(r + 1) + 10);
      }
    }
  }
}

}  // namespace
}  // namespace distgrad
