#include "rank/backends/self_test.h"

#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/version.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "rank/backends/gloo_connection.h"

namespace distgrad {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax};
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

bool same(const at::Tensor& a, const at::Tensor& b, double rtol = 0) {
  return at::allclose(a, b, rtol, 0, /*equal_nan=*/true);
}

// NCCL rounds every operand's product with 1/N; sums of small integers are exact.
double rounding_of(ReduceOp op, at::ScalarType type) {
  if (op != ReduceOp::kAvg) return 0;
  const double eps = type == at::kDouble  ? 0x1p-52
                     : type == at::kFloat ? 0x1p-23
                     : type == at::kHalf  ? 0x1p-10
                                          : 0x1p-7;
  return 2 * eps;
}

// Small integers (their means are halves), and a NaN on one rank in one element each.
std::vector<at::Tensor> operands(const Connection& group, at::ScalarType type, bool with_nan) {
  std::vector<at::Tensor> by_rank;
  for (int r = 0; r < group.size(); ++r) {
    at::Tensor x = (at::arange(5, at::kDouble) - 2) * (r + 1);
    if (with_nan) x[r] = std::numeric_limits<double>::quiet_NaN();
    by_rank.push_back(x.to(type).to(group.device()));
  }
  return by_rank;
}

class Examination {
 public:
  Examination(Connection& connection, BackendTraits& traits)
      : connection_(connection), traits_(traits) {}

  void all_reduce(ReduceOp op, at::ScalarType type) {
    ask(name("all_reduce", op, type), [&](bool with_nan) {
      const std::vector<at::Tensor> x = operands(connection_, type, with_nan);
      return same(connection_.all_reduce(x[connection_.rank()], op), reduced(x, op),
                  rounding_of(op, type));
    });
  }

  void reduce(ReduceOp op, at::ScalarType type) {
    ask(name("reduce", op, type), [&](bool with_nan) {
      const std::vector<at::Tensor> x = operands(connection_, type, with_nan);
      bool right = true;
      for (int root = 0; root < connection_.size(); ++root) {
        const at::Tensor y = connection_.reduce(x[connection_.rank()], op, root);
        if (connection_.rank() == root)
          right = right && same(y, reduced(x, op), rounding_of(op, type));
      }
      return right;
    });
  }

  void all_to_all() {
    ask("all_to_all", [&](bool) {
      // Rank i sends i * j elements to rank j: some send nothing.
      const int me = connection_.rank();
      std::vector<at::Tensor> chunks;
      std::vector<Shape> shapes;
      for (int other = 0; other < connection_.size(); ++other) {
        chunks.push_back(at::full({me * other}, 10 * me + other, numbers()));
        shapes.push_back({me * other});
      }
      const std::vector<at::Tensor> got = connection_.all_to_all(chunks, shapes);
      bool right = true;
      for (int other = 0; other < connection_.size(); ++other)
        right = right && same(got[other], at::full({me * other}, 10 * other + me, numbers()));
      return right;
    });
  }

 private:
  at::TensorOptions numbers() const {
    return at::TensorOptions(at::kDouble).device(connection_.device());
  }

  static std::string name(const char* collective, ReduceOp op, at::ScalarType type) {
    return std::string(collective) + " " + std::string(name_of(op)) + " " + c10::toString(type);
  }

  // Right on every rank, without and with a NaN; a refusal is not right.
  void ask(const std::string& what, const std::function<bool(bool with_nan)>& is_right) {
    std::string why;
    for (const bool with_nan : {false, true}) {
      bool right = false;
      std::string refusal;
      try {
        right = is_right(with_nan);
      } catch (const std::exception& e) {
        refusal = std::string(e.what()).substr(0, std::string(e.what()).find('\n'));
      }
      const at::Tensor votes = at::stack(
          connection_.all_gather(at::full({1}, right ? 1 : 0, numbers().dtype(at::kLong))));
      if (votes.min().item<std::int64_t>() == 1) continue;
      if (why.empty())
        why = !refusal.empty() ? "refused: " + refusal : with_nan ? "loses a NaN" : "wrong values";
    }
    traits_.right[what] = why.empty();
    if (!why.empty()) traits_.why[what] = why;
  }

  Connection& connection_;
  BackendTraits& traits_;
};

}  // namespace

BackendTraits self_test(Connection& connection) {
  BackendTraits traits;
  traits.torch = torch_version();
  traits.source = "self-test";
  Examination examination(connection, traits);
  for (const at::ScalarType type : kTypes) {
    for (const ReduceOp op : kOps) {
      examination.all_reduce(op, type);
      examination.reduce(op, type);
    }
  }
  examination.all_to_all();
  return traits;
}

BackendTraits self_test(c10::intrusive_ptr<c10d::Store> store, int rank) {
  BackendTraits everything;
  everything.untested = true;
  const auto connection =
      make_gloo_connection(std::move(store), rank, kSelfTestRanks, "self-test", everything);
  return self_test(*connection);
}

std::string torch_version() { return TORCH_VERSION; }

std::string to_json(const BackendTraits& traits, const std::string& backend) {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  for (const auto& [what, right] : traits.right) {
    found[what]["native"] = right;
    if (const auto why = traits.why.find(what); why != traits.why.end())
      found[what]["why"] = why->second;
  }
  return nlohmann::ordered_json{{"torch", traits.torch}, {backend, found}}.dump(1);
}

}  // namespace distgrad
