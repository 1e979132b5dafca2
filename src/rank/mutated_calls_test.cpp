// Mutants on real ranks: each does what its name says, in subgroups, with operands and cotangents
// that differ by rank and element.
#include <functional>
#include <set>

#include "model/group_order.h"
#include "model/libraries.h"
#include "rank/real_ranks_test.h"
#include "rank/rules/linear_mistake.h"

namespace distgrad {
namespace {

using testing::Partition;
using testing::Sample;
using Tensors = std::vector<at::Tensor>;
using Joint = std::function<Tensors(const Call&, const JointValues&)>;

const Partition kPart = {{4, 0, 2}, {5, 3, 1}};
const Partition kHalves = {{0, 1, 2}, {3, 4, 5}};

// One of every kind and op, of three ranks.
std::vector<Sample> one_of_each() {
  std::set<std::pair<CollectiveKind, ReduceOp>> seen;
  std::vector<Sample> all;
  for (Sample& s : testing::samples(3, at::kDouble, false))
    if (seen.emplace(s.spec.kind, s.spec.op).second) all.push_back(std::move(s));
  return all;
}

// What the name says: which lists of ranks do what with the cotangents that arrive.
struct Meaning {
  Partition lists = kPart;
  std::optional<CollectiveCall> spec = {};  // another call's
  Joint backward = rule_named("adjoint")->evaluate;
  int without = -1;  // rank of the world
};

// A call and what of it is driven.
struct Subject {
  Sample sample;
  Tensors operands, cotangents;  // by rank of the world; cotangents stacked
  Program program;
  Drive drive{"g"};
};

Subject subject_of(const Sample& sample) {
  Subject s{sample, testing::operands_of(sample, kPart), {}, {}};
  s.program = testing::one_call(sample, kPart, s.operands);
  s.program.groups.push_back({"halves", kHalves, false});
  s.cotangents = testing::cotangents_of(testing::outputs_of(s.program, s.operands), 3, false);
  for (at::Tensor& g : s.cotangents) g = g * 1.1;  // which no narrower dtype holds
  s.program.inputs.push_back(testing::local_input("g", s.cotangents, false));
  return s;
}

// By rank, stacked.
Tensors meant(const Subject& s, const Meaning& meaning) {
  Tensors stacked(s.operands.size());
  for (const std::vector<int>& list : meaning.lists) {
    const Call call{meaning.spec ? &*meaning.spec : &s.sample.spec, static_cast<int>(list.size())};
    JointValues v;
    for (const int r : list) v.operands.push_back(s.operands[r]);
    for (const at::Tensor& y : collective(call.spec->kind).simulate(call, v.operands))
      v.outputs.push_back(y.clone());
    std::vector<Tensors> given(list.size());
    for (std::int64_t k = 0; k < s.cotangents[0].size(0); ++k) {
      v.cotangents.clear();
      for (const int r : list)
        v.cotangents.push_back(r == meaning.without ? at::zeros_like(s.cotangents[r][k])
                                                    : s.cotangents[r][k].clone());
      const Tensors all = meaning.backward(call, v);
      for (std::size_t i = 0; i < list.size(); ++i) given[i].push_back(all[i]);
    }
    for (std::size_t i = 0; i < list.size(); ++i) stacked[list[i]] = at::stack(given[i]);
  }
  return stacked;
}

// Many at once, since a case waits for every rank.
class Trials {
 public:
  void add(const Subject& s, const std::string& what, const Meaning& meaning) {
    RunRequest request{s.program, "mutant:y=" + what, "gloo",
                       std::vector<double>(s.operands.size(), 1.0)};
    request.drive = s.drive;
    trials_.push_back(
        {s.sample.name + ", " + what, meant(s, meaning), meant(s, {}), pool_.run(request, 30)});
  }

  // How many were not right.
  int judge() {
    int wrong = 0;
    for (const Trial& trial : trials_) {
      SCOPED_TRACE(trial.name);
      const auto run = std::get<DistributedRun>(pool_.wait(trial.ticket).value().result);
      EXPECT_FALSE(run.error) << run.error->message;
      if (run.error) continue;
      bool is_right = true;
      for (std::size_t r = 0; r < run.ranks.size(); ++r) {
        const at::Tensor seen = tensor_of(run.ranks[r].gradients.at(0).value());
        EXPECT_TRUE(testing::close(seen, trial.meant[r])) << "rank " << r << "\n"
                                                          << seen << "\n"
                                                          << trial.meant[r];
        is_right = is_right && testing::close(seen, trial.right[r]);
      }
      wrong += !is_right;
    }
    return wrong;
  }

  std::size_t size() const { return trials_.size(); }

 private:
  struct Trial {
    std::string name;
    Tensors meant, right;
    Ticket ticket;
  };
  WorkerPool pool_{{.rank_commands = {{std::string(DISTGRAD_BIN_DIR) + "/distgrad-rank"}}}};
  std::vector<Trial> trials_;
};

bool fits(const Subject& s, const Meaning& meaning) {
  try {
    const Tensors given = meant(s, meaning);
    for (std::size_t r = 0; r < given.size(); ++r)
      if (given[r][0].sizes() != s.operands[r].sizes()) return false;
    return true;
  } catch (const c10::Error&) {  // another rank's slice has another shape
    return false;
  }
}

TEST(MutatedCalls, RunTheRule) {
  Trials trials;
  for (const Sample& sample : one_of_each()) {
    const Subject s = subject_of(sample);
    for (const BackwardRuleRow& row : backward_rules()) {
      const Rule& rule = *rule_named(row.name);
      // What the backend leaves nobody knows before; what writes over cotangents gives what is
      // right.
      const bool is_told =
          row.name != "raises" && row.name != "none" && row.name != "partial_sums_off_root";
      if (rule.applies(sample.spec) && is_told && fits(s, {.backward = rule.evaluate}))
        trials.add(s, std::string(row.name), {.backward = rule.evaluate});
    }
  }
  EXPECT_GT(trials.size(), 250U);
  EXPECT_GT(trials.judge(), 240);
}

TEST(MutatedCalls, LeaveARankOut) {
  Trials trials;
  for (const Sample& sample : one_of_each())
    trials.add(subject_of(sample), "without:3", {.without = 3});
  EXPECT_GT(trials.judge(), 15);
}

TEST(MutatedCalls, TakeAnotherRoot) {
  Trials trials;
  for (const Sample& sample : one_of_each())
    if (traits(sample.spec.kind).takes_root) {
      CollectiveCall other = sample.spec;
      other.root = (other.root + 1) % 3;
      trials.add(subject_of(sample), "root:" + std::to_string(other.root), {.spec = other});
    }
  EXPECT_EQ(static_cast<std::size_t>(trials.judge()), trials.size());
  EXPECT_EQ(trials.size(), 9U);
}

TEST(MutatedCalls, RunOverAnotherGroup) {
  Trials trials;
  for (const Sample& sample : one_of_each()) {
    const Subject s = subject_of(sample);
    if (fits(s, {.lists = kHalves})) trials.add(s, "group:halves", {.lists = kHalves});
    // Elsewhere a call by six ranks has other shapes.
    if (sample.spec.kind == CollectiveKind::kAllReduce)
      trials.add(s, "group:world", {.lists = {{0, 1, 2, 3, 4, 5}}});
  }
  EXPECT_GT(trials.judge(), 20);
}

TEST(MutatedCalls, CountTheGroupInAnotherOrder) {
  Trials trials;
  for (const Sample& sample : one_of_each())
    for (const std::string_view order : kGroupOrders) {
      Partition lists;
      for (const auto& list : kPart) lists.push_back(reordered(list, order, sample.spec.root));
      const Subject s = subject_of(sample);
      if (fits(s, {.lists = lists})) trials.add(s, "order:" + std::string(order), {.lists = lists});
    }
  EXPECT_GT(trials.judge(), 15);
}

TEST(MutatedCalls, RunALinearMapWithoutAName) {
  Trials trials;
  for (const Sample& sample : one_of_each())
    for (std::uint64_t seed = 0; seed < kLinearForms; ++seed)
      trials.add(subject_of(sample), "linear:" + std::to_string(seed),
                 {.backward = [seed](const Call& call, const JointValues& v) {
                   return linear_mistake(seed, call, v);
                 }});
  EXPECT_EQ(static_cast<std::size_t>(trials.judge()), trials.size());
}

TEST(MutatedCalls, MistakeTheirOwnMemory) {
  Trials trials;
  for (const Sample& sample : one_of_each()) {
    if (sample.operands[0].dim() != 2) continue;
    for (const char* name : {"as_stored", "operand_as_stored"}) {
      const Rule& rule = *rule_named(name);
      if (!rule.applies(sample.spec)) continue;
      Subject s = subject_of(sample);
      std::vector<Strides> operand, cotangent;
      for (std::size_t r = 0; r < s.operands.size(); ++r) {
        const auto transposed = [](const at::Tensor& x) {
          return Strides{1, std::max<std::int64_t>(x.size(0), 1)};
        };
        operand.push_back(transposed(s.operands[r]));
        cotangent.push_back(s.cotangents[r].dim() == 3 ? transposed(s.cotangents[r][0])
                                                       : Strides());
      }
      s.drive.operand_strides = operand;
      s.drive.cotangent_strides = cotangent;
      trials.add(s, name, {.backward = [&rule](const Call& call, JointValues v) {
                   for (at::Tensor& x : v.operands)
                     x = laid_in_memory(x, {1, std::max<std::int64_t>(x.size(0), 1)});
                   for (at::Tensor& g : v.cotangents)
                     if (g.dim() == 2)
                       g = laid_in_memory(g, {1, std::max<std::int64_t>(g.size(0), 1)});
                   return rule.evaluate(call, v);
                 }});
    }
  }
  EXPECT_GT(trials.judge(), 15);
}

}  // namespace
}  // namespace distgrad
