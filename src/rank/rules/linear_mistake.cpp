#include "rank/rules/linear_mistake.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <utility>

#include "rank/rules/mistakes.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;

// The standard fixes what this engine gives for a seed, so all ranks draw alike.
using Random = std::mt19937_64;
std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

double small_number(Random& random) {
  constexpr double kNumbers[] = {-2, -1, 2, 3, 0.5, 1.5, -0.5, 1.0 / 3, 2.0 / 3, 4.0 / 3};
  return kNumbers[below(random, std::size(kNumbers))];
}

using Matrix = std::vector<std::vector<double>>;  // [to][from], by rank of the group

template <class Number>
Matrix matrix(int size, const Number& number) {
  Matrix m(size, std::vector<double>(size));
  for (int i = 0; i < size; ++i)
    for (int r = 0; r < size; ++r) m[i][r] = number(i, r);
  return m;
}

JointValues alone(const JointValues& v, int rank, at::Tensor cotangent) {
  JointValues one = v;
  for (at::Tensor& g : one.cotangents) g = at::zeros_like(g);
  one.cotangents[rank] = std::move(cotangent);
  return one;
}

// Returns 1 where rank `to`'s operand has a part in rank `from`'s output: where that block of the
// adjoint, in which no two elements of an output meet in one of an operand, is not zero.
Matrix parts_of(const Call& call, const JointValues& v) {
  Matrix parts = matrix(call.size, [](int, int) { return 0.0; });
  for (int r = 0; r < call.size; ++r) {
    const Tensors blocks =
        adjoint_of(*call.spec, call.size, alone(v, r, at::ones_like(v.cotangents[r])));
    for (int i = 0; i < call.size; ++i)
      parts[i][r] = blocks[i].count_nonzero().item<std::int64_t>() > 0;
  }
  return parts;
}

// Returns true if the adjoint with its blocks times these numbers has a name: the adjoint itself,
// scaled, the own part, the others', or that of some ranks.
bool has_name(const Matrix& parts, const Matrix& numbers) {
  const int size = static_cast<int>(parts.size());
  std::vector<double> all, own, others;
  bool by_source = true;
  for (int r = 0; r < size; ++r) {
    std::vector<double> of_source;
    for (int i = 0; i < size; ++i) {
      if (parts[i][r] == 0) continue;
      all.push_back(numbers[i][r]);
      of_source.push_back(numbers[i][r]);
      (i == r ? own : others).push_back(numbers[i][r]);
    }
    by_source =
        by_source && std::ranges::adjacent_find(of_source, std::not_equal_to()) == of_source.end();
  }
  const auto is_one_number = [](const std::vector<double>& list) {
    return std::ranges::adjacent_find(list, std::not_equal_to()) == list.end();
  };
  const bool zero_or_one = std::ranges::all_of(all, [](double c) { return c == 0 || c == 1; });
  return is_one_number(all) ||
         (zero_or_one && (by_source || (is_one_number(own) && is_one_number(others))));
}

Matrix numbers_of(Random& random, std::uint64_t form, const Matrix& parts) {
  const int n = static_cast<int>(parts.size());
  const int turned = static_cast<int>(below(random, n)),
            apart = 1 + static_cast<int>(below(random, std::max(n - 1, 1)));
  Matrix numbers;
  switch (form) {
    case 1:
      numbers = matrix(n, [&](int, int r) { return r == turned ? -1.0 : 1.0; });
      break;
    case 2:
      numbers = matrix(n, [](int i, int r) { return i == r ? 2.0 : 1.0; });
      break;
    case 3:
      numbers = matrix(n, [](int i, int r) { return r <= i ? 1.0 : 0.0; });
      break;
    case 4:
      numbers = matrix(n, [&](int i, int r) { return (r - i + n) % n == apart ? 0.0 : 1.0; });
      break;
    case 5:
      numbers =
          matrix(n, [&](int i, int r) { return i == r || (r - i + n) % n == apart ? 1.0 : 0.0; });
      break;
    default:
      break;
  }
  const auto draw = [&] { return matrix(n, [&](int, int) { return small_number(random); }); };
  if (numbers.empty()) numbers = draw();
  for (int attempt = 0; has_name(parts, numbers) && attempt < 8; ++attempt) numbers = draw();
  return numbers;
}

// Returns Σ_r c(i, r) B(i, r) ȳ_r.
Tensors of_blocks(const Call& call, const JointValues& v, const Matrix& numbers) {
  Tensors out;
  for (const at::Tensor& x : v.operands)
    out.push_back(at::zeros_like(x, at::MemoryFormat::Contiguous));
  for (int r = 0; r < call.size; ++r) {
    const Tensors blocks = adjoint_of(*call.spec, call.size, alone(v, r, v.cotangents[r]));
    for (int i = 0; i < call.size; ++i) out[i] = out[i] + blocks[i] * numbers[i][r];
  }
  return out;
}

// Returns as many elements as `like` has, from `shift` on, cyclically.
at::Tensor elements_of(const at::Tensor& x, const at::Tensor& like, std::int64_t shift) {
  if (x.numel() == 0) return at::zeros_like(like, at::MemoryFormat::Contiguous);
  const at::Tensor places =
      (at::arange(like.numel(), at::device(x.device()).dtype(at::kLong)) + shift)
          .remainder(x.numel());
  return x.reshape({-1}).index_select(0, places).reshape(like.sizes());
}

Tensors of_elements(Random& random, const Call& call, const JointValues& v, const Matrix& numbers) {
  Tensors out;
  for (int i = 0; i < call.size; ++i) {
    at::Tensor sum = at::zeros_like(v.operands[i], at::MemoryFormat::Contiguous);
    for (int r = 0; r < call.size; ++r)
      sum = sum + elements_of(v.cotangents[r], v.operands[i], 1 + below(random, 5)) * numbers[i][r];
    out.push_back(sum);
  }
  return out;
}

}  // namespace

Tensors linear_mistake(std::uint64_t seed, const Call& call, const JointValues& v) {
  Random random(seed);
  const std::uint64_t form = seed % kLinearForms;
  const Matrix parts = parts_of(call, v), numbers = numbers_of(random, form, parts);
  if (form == 6) return of_elements(random, call, v, numbers);
  Tensors out = of_blocks(call, v, numbers);
  if (form == 7 || has_name(parts, numbers))  // of a single block, whatever the number
    for (at::Tensor& x : out) x = elements_of(x, x, 1);
  return out;
}

}  // namespace distgrad
