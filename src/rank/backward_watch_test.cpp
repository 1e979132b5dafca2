// A watched call sees what its backward got and gave, and leaves autograd as it is: each graph is
// run twice, watched and not.
#include "rank/backward_watch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>

#include "rank/backends/gloo_connection.h"
#include "rank/input_values.h"
#include "rank/rank_call.h"

namespace distgrad {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor numbers(at::IntArrayRef shape, double first = 1) {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return (at::arange(n, at::kDouble) + first).reshape(shape);
}

std::vector<double> values(const Array& a) { return {a.values().begin(), a.values().end()}; }
std::vector<double> values(const at::Tensor& x) { return values(array_of(x)); }
std::vector<double> values(const std::optional<Array>& a) {
  return a ? values(*a) : std::vector<double>();
}
using Values = std::vector<double>;

// What a backward was handed: as much as it could ever look at.
struct Arrived {
  Values values;
  Shape sizes;
  Strides strides;
  bool is_contiguous = false, requires_grad = false, is_leaf = false;
  const void* memory = nullptr;
  bool operator==(const Arrived& other) const {  // two runs have other memory
    return values == other.values && sizes == other.sizes && strides == other.strides &&
           is_contiguous == other.is_contiguous && requires_grad == other.requires_grad &&
           is_leaf == other.is_leaf;
  }
};
std::vector<Arrived> arrived;

// A user's function: gives `factor` times what arrives, in its place where that is asked for.
struct Times : torch::autograd::Function<Times> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double factor,
                            bool in_place) {
    context->saved_data["factor"] = factor;
    context->saved_data["in_place"] = in_place;
    return x * factor;
  }
  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    at::Tensor g = cotangents[0];
    arrived.push_back({values(g), g.sizes().vec(), g.strides().vec(), g.is_contiguous(),
                       g.requires_grad(), g.is_leaf(), g.data_ptr()});
    const double factor = context->saved_data["factor"].toDouble();
    return {context->saved_data["in_place"].toBool() ? g.mul_(factor) : g * factor, at::Tensor(),
            at::Tensor()};
  }
};

using Call = std::function<at::Tensor(const at::Tensor&)>;

// `make` gets a call that is watched, or is not, and makes a scalar of it.
struct Both {
  std::optional<ObservedCall> seen;
  std::vector<Arrived> plain, watched;
};

Both run_both(const Call& call, const std::function<at::Tensor(const Call&)>& make) {
  Both both;
  arrived.clear();
  make(call).backward();
  both.plain = std::exchange(arrived, {});
  std::shared_ptr<WatchedCall> watch;
  make([&](const at::Tensor& operand) {
    watch = std::make_shared<WatchedCall>("y", operand);
    const at::Tensor output = call(operand);
    watch_graph(watch, output);
    return output;
  }).backward();
  both.watched = std::exchange(arrived, {});
  EXPECT_EQ(both.plain, both.watched);
  both.seen = watch->observed();
  return both;
}

Call times(double factor, bool in_place = false) {
  return [=](const at::Tensor& x) { return Times::apply(x, factor, in_place); };
}

TEST(WatchedCall, SeesWhatArrivesAndWhatIsGiven) {
  const Both both = run_both(times(3), [](const Call& call) {
    const at::Tensor x = numbers({2, 3}).requires_grad_(true);
    return (call(x * 2).t() * numbers({3, 2}, 5)).sum();
  });
  EXPECT_EQ(both.seen->step, "y");
  EXPECT_EQ(values(both.seen->operand), (Values{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(both.seen->operand_strides, (Strides{3, 1}));
  EXPECT_EQ(values(both.seen->cotangent), (Values{5, 7, 9, 6, 8, 10}));
  EXPECT_EQ(both.seen->cotangent_strides, (Strides{1, 2}));
  EXPECT_EQ(values(both.seen->given), (Values{15, 21, 27, 18, 24, 30}));
  EXPECT_FALSE(both.seen->cotangent_after);
}

TEST(WatchedCall, LeavesWhatOtherUsesOfTheOperandAdd) {
  at::Tensor x;
  const Both both = run_both(times(3), [&](const Call& call) {
    x = numbers({2}).requires_grad_(true);
    const at::Tensor operand = x * 1;
    return (operand * 100 + call(operand) + operand.sin() * 0).sum();
  });
  EXPECT_EQ(values(both.seen->given), (Values{3, 3}));
  EXPECT_EQ(values(x.grad()), (Values{103, 103}));
}

TEST(WatchedCall, AddsWhatOneCallGivesInParts) {
  const Both both = run_both(
      [](const at::Tensor& x) {
        return Times::apply(x, 2, false) + x * x + at::cat({x, x}).sum();
      },
      [](const Call& call) {
        const at::Tensor x = numbers({2}).requires_grad_(true);
        return (call(x * 1) * numbers({2}, 10)).sum();
      });
  // 2 g + 2 x g + twice the sum of g, where g = [10, 11].
  EXPECT_EQ(values(both.seen->given), (Values{20 + 20 + 42, 22 + 44 + 42}));
}

TEST(WatchedCall, TakesExpandedAndTransposedTensorsAsTheyLie) {
  for (const auto& make : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           [](const at::Tensor& y) { return y.sum(); },  // expanded
           [](const at::Tensor& y) {
             return (y.t() * numbers({3, 2})).sum();
           },  // transposed
           [](const at::Tensor& y) {
             return (y.select(0, 1) * numbers({3})).sum();
           },  // zeros around it
           [](const at::Tensor& y) {
             return y.sum(0, true).expand({4, 3}).reshape({-1}).dot(numbers({12}));
           }}) {
    const Both both = run_both(times(1), [&](const Call& call) {
      const at::Tensor x = numbers({3, 2}).requires_grad_(true);
      return make(call(x.t()));
    });
    ASSERT_EQ(both.watched.size(), 1U);
    EXPECT_EQ(values(both.seen->cotangent), both.watched[0].values);
    EXPECT_EQ(both.seen->cotangent_strides, both.watched[0].strides);
    EXPECT_EQ(both.seen->operand_strides, (Strides{1, 2}));
  }
}

// Who shares a cotangent with a call that writes to it finds what that wrote, watched or not.
TEST(WatchedCall, LeavesASharedCotangentShared) {
  const Both both = run_both(times(3, true), [](const Call& call) {
    const at::Tensor x = numbers({2}).requires_grad_(true);
    const at::Tensor other = Times::apply(x * 5, 1, false);
    return ((call(x * 1) + other) * numbers({2}, 7)).sum();  // the sum hands one tensor to both
  });
  ASSERT_EQ(both.watched.size(), 2U);
  EXPECT_EQ(both.watched[0].memory, both.watched[1].memory) << "one tensor for both";
  EXPECT_EQ(both.watched[1].values, (Values{21, 24})) << "the second sees what the first wrote";
  EXPECT_EQ(values(both.seen->cotangent), (Values{7, 8}));
  EXPECT_EQ(values(both.seen->given), (Values{21, 24}));
  EXPECT_EQ(values(both.seen->cotangent_after), (Values{21, 24}));
}

TEST(WatchedCall, SeesAWriteThroughAView) {
  const Both both = run_both(
      [](const at::Tensor& x) {
        return at::stack({Times::apply(x, 3, true), x * 0});
      },
      [](const Call& call) {
        const at::Tensor x = numbers({2}).requires_grad_(true);
        const at::Tensor other = numbers({2, 2}).requires_grad_(true) * 1;
        return ((call(x * 1) + other) * numbers({2, 2}, 7)).sum();
      });
  EXPECT_EQ(values(both.seen->cotangent), (Values{7, 8, 9, 10}));
  EXPECT_EQ(values(both.seen->cotangent_after), (Values{21, 24, 9, 10}));
}

// Two gradients meet in a buffer to which autograd adds in place, if nobody else holds the first; a
// leaf takes over a gradient that nobody else holds. The addresses tell.
TEST(WatchedCall, LeavesAccumulationInPlace) {
  for (const bool watched : {false, true}) {
    SCOPED_TRACE(watched ? "watched" : "not watched");
    const void* given = nullptr;
    const void* met = nullptr;
    const at::Tensor leaf = numbers({2}).requires_grad_(true),
                     taken = numbers({2}).requires_grad_(true);
    const at::Tensor operand = leaf * 1;
    operand.register_hook([&](const at::Tensor& g) { met = g.data_ptr(); });
    const at::Tensor first = operand * 10;  // its gradient comes second
    const auto call = [&](const at::Tensor& x) {
      auto watch = std::make_shared<WatchedCall>("y", x);
      const at::Tensor inner = x.clone();
      inner.register_hook([&](const at::Tensor& g) { given = g.data_ptr(); });
      const at::Tensor output = inner * 2;
      if (watched) watch_graph(watch, output);
      return output;
    };
    (call(operand) + first).sum().backward();
    EXPECT_NE(given, nullptr);
    EXPECT_EQ(given, met) << "the sum is in the memory of the first gradient";
    (call(taken)).sum().backward();
    EXPECT_EQ(taken.grad().data_ptr(), given) << "the leaf has taken over what it was given";
    EXPECT_EQ(values(leaf.grad()), (Values{12, 12}));
  }
}

// The call's own sum of what arrives twice at x + sin x lies in the memory of the cotangent.
TEST(WatchedCall, TakesWhatAutogradAddsInPlaceForNoWrite) {
  std::vector<const void*> memory;
  at::Tensor leaf;
  const Both both = run_both(
      [](const at::Tensor& x) { return Times::apply(x + 2.0 * (x + x.sin()), 1, true); },
      [&](const Call& call) {
        leaf = numbers({2}).requires_grad_(true);
        const at::Tensor operand = leaf * 1;
        operand.register_hook([&](const at::Tensor& g) { memory.push_back(g.data_ptr()); });
        return (call(operand) * numbers({2}, 7)).sum();
      });
  EXPECT_EQ(memory.back(), both.watched[0].memory) << "or nothing is tried here";
  EXPECT_EQ(values(both.seen->given), values(leaf.grad()));
  EXPECT_FALSE(both.seen->cotangent_after);
}

// Both operands of the sum have one cotangent.
TEST(WatchedCall, CountsAWriteToWhatWasGivenAlready) {
  at::Tensor leaf;
  const Both both = run_both([](const at::Tensor& x) { return x + Times::apply(x, 2, true); },
                             [&](const Call& call) {
                               leaf = numbers({2}).requires_grad_(true);
                               return (call(leaf * 1) * numbers({2}, 7)).sum();
                             });
  EXPECT_EQ(values(leaf.grad()), (Values{28, 32}));
  EXPECT_EQ(values(both.seen->given), (Values{28, 32}));
  EXPECT_EQ(values(both.seen->cotangent_after), (Values{14, 16}));
}

TEST(WatchedCall, SeesWritesByHooksAndThroughViewsOfItsResult) {
  const Call hook = [](const at::Tensor& x) {
    const at::Tensor y = x * 1;
    y.register_hook([](const at::Tensor& g) { at::Tensor(g).mul_(3); });
    return y.unsqueeze(0).squeeze(0);
  };
  for (const auto& [call, by] : std::vector<std::pair<Call, double>>{
           {hook, 3},
           {[](const at::Tensor& x) { return Times::apply(x, 2, true).view({2}); }, 2},
           {[](const at::Tensor& x) {
              return Times::apply(x.view({1, 2}), 2, true).view({2});
            },
            2},
           {[](const at::Tensor& x) { return Times::apply(Times::apply(x, 2, true), 1, false); },
            2}}) {
    at::Tensor leaf;
    const Both both = run_both(call, [&, &call = call](const Call& watched) {
      leaf = numbers({2}).requires_grad_(true);
      return (watched(leaf * 1) * numbers({2}, 7)).sum();
    });
    EXPECT_EQ(values(both.seen->cotangent), (Values{7, 8}));
    for (const Values& seen : {values(both.seen->given), values(leaf.grad())})
      EXPECT_EQ(seen, (Values{7 * by, 8 * by}));
  }
}

TEST(WatchedCall, IsUnclearWhereTheBackwardRunsTwiceOrInParts) {
  const auto run =
      [](const std::function<void(const at::Tensor& y, const at::Tensor& inner)>& back) {
        const at::Tensor x = numbers({2}).requires_grad_(true) * 1;
        const auto watch = std::make_shared<WatchedCall>("y", x);
        const at::Tensor inner = x.sin(), y = inner.cos();
        watch_graph(watch, y);
        back(y, inner);
        return std::pair(watch->is_unclear(), observed_of({watch}).size());
      };
  using Seen = std::pair<bool, std::size_t>;
  EXPECT_EQ(run([](auto& y, auto&) { y.sum().backward(); }), (Seen{false, 1}));
  EXPECT_EQ(run([](auto& y, auto&) {
              y.sum().backward({}, /*retain_graph=*/true);
              y.sum().backward();
            }),
            (Seen{true, 0}));
  // That it gives more than what came of its value is the call's own doing.
  EXPECT_EQ(run([](auto& y, auto& inner) { (y.sum() + inner.sum()).backward(); }),
            (Seen{false, 1}));
  EXPECT_EQ(run([](auto&, auto& inner) { inner.sum().backward(); }), (Seen{true, 0}));
}

// Under a checkpoint a step is called twice, and the second call's backward runs.
TEST(WatchedCall, OfAStepTheOneCountsWhoseBackwardRan) {
  std::vector<std::shared_ptr<WatchedCall>> calls;
  at::Tensor y;
  for (int i = 1; i <= 2; ++i) {
    const at::Tensor x = numbers({2}, i).requires_grad_(true) * 1;
    calls.push_back(std::make_shared<WatchedCall>("y", x));
    y = x * 3;
    watch_graph(calls.back(), y);
  }
  EXPECT_EQ(values(observed_of(calls).at(0).operand), (Values{1, 2}));
  y.sum().backward();
  ASSERT_EQ(observed_of(calls).size(), 1U);
  EXPECT_EQ(values(observed_of(calls)[0].operand), (Values{2, 3}));
  EXPECT_EQ(values(observed_of(calls)[0].given), (Values{3, 3}));
}

// Autograd passes zeros as an undefined tensor.
TEST(WatchedCall, TakesAnUndefinedCotangentForZeros) {
  const at::Tensor x = numbers({2, 3}).requires_grad_(true);
  const auto watch = std::make_shared<WatchedCall>("y", x);
  const at::Tensor y = Times::apply(x, 2, false);
  watch_graph(watch, y);
  y.grad_fn()->tensor_pre_hooks()[0]->operator()({at::Tensor()});
  EXPECT_EQ(values(watch->observed().cotangent), Values(6, 0.0));
  EXPECT_TRUE(watch->observed().cotangent_strides.empty());
}

TEST(WatchedCall, SeesBeforeAHookThatTheCallLeftOnItsResult) {
  const Both both = run_both(
      [](const at::Tensor& x) {
        const at::Tensor y = Times::apply(x, 1, false);
        y.register_hook([](const at::Tensor& g) { return g * 4; });
        return y;
      },
      [](const Call& call) {
        const at::Tensor x = numbers({2}).requires_grad_(true);
        return (call(x * 1) * numbers({2}, 7)).sum();
      });
  EXPECT_EQ(values(both.seen->cotangent), (Values{7, 8}));
  EXPECT_EQ(values(both.seen->given), (Values{28, 32}));
}

TEST(WatchedCall, AResultThatIsTheOperandGivesWhatArrives) {
  const Both both = run_both([](const at::Tensor& x) { return x; },
                             [](const Call& call) {
                               const at::Tensor x = numbers({2}).requires_grad_(true);
                               return (call(x) * numbers({2}, 7)).sum();
                             });
  EXPECT_EQ(values(both.seen->cotangent), (Values{7, 8}));
  EXPECT_EQ(values(both.seen->given), (Values{7, 8}));
}

TEST(WatchedCall, TellsNoneFromZeros) {
  const Both unused = run_both(times(3), [](const Call& call) {
    const at::Tensor x = numbers({2}).requires_grad_(true);
    call(x);
    return x.sum();
  });
  EXPECT_FALSE(unused.seen->cotangent || unused.seen->given);
  const Both detached = run_both(
      [](const at::Tensor& x) {
        return x.detach() * 2 + at::zeros({2}, at::kDouble).requires_grad_(true);
      },
      [](const Call& call) {
        const at::Tensor x = numbers({2}).requires_grad_(true);
        return call(x).sum();
      });
  EXPECT_EQ(values(detached.seen->cotangent), (Values{1, 1}));
  EXPECT_FALSE(detached.seen->given);
  const Both zero = run_both(times(0), [](const Call& call) {
    const at::Tensor x = numbers({2}).requires_grad_(true);
    return call(x).sum();
  });
  EXPECT_EQ(values(zero.seen->given), (Values{0, 0}));
}

// A node of ours tells the watch itself.
class WatchedNode : public testing::Test {
 protected:
  at::Tensor call(const at::Tensor& operand, Backward backward, std::shared_ptr<WatchedCall>& watch,
                  bool is_watched) {
    auto site = std::make_shared<CallSite>();
    site->call = {&spec_, 1};
    site->connection = connection_.get();
    site->backward = std::move(backward);
    if (is_watched) site->watch = watch = std::make_shared<WatchedCall>("y", operand);
    at::Tensor anchor = at::zeros({}, at::kDouble);
    return call_on_rank(site, operand, anchor.requires_grad_(true));
  }

  CollectiveCall spec_;  // an all_reduce
  std::unique_ptr<Connection> connection_ =
      make_gloo_connection(c10::make_intrusive<c10d::HashStore>(), 0, 1, "test", {});
};

TEST_F(WatchedNode, IsSeenAsItIs) {
  const auto identity = [](const CallSite&, const SavedForBackward&, const at::Tensor& g) {
    return g;
  };
  for (const bool watched : {false, true}) {
    std::shared_ptr<WatchedCall> watch;
    const at::Tensor x = numbers({2, 2}).requires_grad_(true);
    const void* arrived_at = nullptr;
    const at::Tensor y = call(x, identity, watch, watched);
    y.register_hook([&](const at::Tensor& g) { arrived_at = g.data_ptr(); });
    (y.t() * numbers({2, 2}, 3)).sum().backward();
    EXPECT_EQ(values(x.grad()), (Values{3, 5, 4, 6}));
    if (!watched) continue;
    const ObservedCall seen = watch->observed();
    EXPECT_EQ(values(seen.cotangent), (Values{3, 5, 4, 6}));
    EXPECT_EQ(seen.cotangent_strides, (Strides{1, 2}));
    EXPECT_EQ(values(seen.given), (Values{3, 5, 4, 6}));
    EXPECT_FALSE(seen.cotangent_after);
  }
}

TEST_F(WatchedNode, TellsAWriteAndALeafThatTakesOver) {
  const auto in_place = [](const CallSite&, const SavedForBackward&, const at::Tensor& g) {
    return at::Tensor(g).mul_(2);
  };
  for (const bool watched : {false, true}) {
    SCOPED_TRACE(watched);
    std::shared_ptr<WatchedCall> watch;
    const at::Tensor x = numbers({2}).requires_grad_(true);
    const void* arrived_at = nullptr;
    const at::Tensor y = call(x, in_place, watch, watched);
    y.register_hook([&](const at::Tensor& g) { arrived_at = g.data_ptr(); });
    (y * numbers({2}, 3)).sum().backward();
    EXPECT_EQ(x.grad().data_ptr(), arrived_at) << "nobody else holds what it was given";
    EXPECT_EQ(values(x.grad()), (Values{6, 8}));
    if (!watched) continue;
    EXPECT_EQ(values(watch->observed().cotangent), (Values{3, 4}));
    EXPECT_EQ(values(watch->observed().cotangent_after), (Values{6, 8}));
  }
}

TEST_F(WatchedNode, SeesWhatAnOperandGetsThatWantsNoGradient) {
  std::shared_ptr<WatchedCall> watch;
  const at::Tensor y = call(numbers({2}), native_backward, watch, true);
  (y * numbers({2}, 3)).sum().backward();
  EXPECT_EQ(values(watch->observed().given), (Values{3, 4}));
}

TEST_F(WatchedNode, TellsNone) {
  std::shared_ptr<WatchedCall> watch;
  const at::Tensor x = numbers({2}).requires_grad_(true);
  const at::Tensor y = call(
      x, [](const CallSite&, const SavedForBackward&, const at::Tensor&) { return at::Tensor(); },
      watch, true);
  (y * numbers({2}, 3)).sum().backward();
  EXPECT_EQ(values(watch->observed().cotangent), (Values{3, 4}));
  EXPECT_FALSE(watch->observed().given);
}

}  // namespace
}  // namespace distgrad
