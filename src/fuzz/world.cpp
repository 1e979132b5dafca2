// Draws world size, mesh, groups, dtype and style.
#include <numeric>

#include "fuzz/draft.h"

namespace distgrad::fuzz {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

void draw_mesh(Draft& draft) {
  constexpr std::array kNames = {"dp", "tp", "pp"};
  Random& random = draft.random;
  int rest = draft.world_size;
  const int axes = random.chance(15) ? 3 : 2;
  for (int axis = 0; axis < axes; ++axis) {
    // An axis of size 1 is of little use, and half of the draws would have one.
    int size = random.pick(divisors(rest));
    if (size == 1 || size == rest) size = random.pick(divisors(rest));
    if (axis == axes - 1) size = rest;
    rest /= size;
    draft.mesh.emplace_back(kNames[static_cast<std::size_t>(axis)], size);
  }
  int inner = draft.world_size;
  for (const auto& [name, size] : draft.mesh) {
    draft.file["mesh"][name] = size;
    inner /= size;
    NamedGroup group{name, {}, true};
    for (int first = 0; first < draft.world_size; ++first) {
      if (first / inner % size != 0) continue;
      std::vector<int> list;
      for (int i = 0; i < size; ++i) list.push_back(first + i * inner);
      group.partition.push_back(std::move(list));
    }
    draft.groups.push_back(std::move(group));
  }
}

std::vector<std::vector<int>> cut(const std::vector<int>& ranks, int size) {
  std::vector<std::vector<int>> lists;
  for (std::size_t i = 0; i < ranks.size(); i += static_cast<std::size_t>(size))
    lists.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(i),
                       ranks.begin() + static_cast<std::ptrdiff_t>(std::min(
                                           ranks.size(), i + static_cast<std::size_t>(size))));
  return lists;
}

// Lists ranks, usually in a random order, in lists of one length if `size` divides the world.
std::vector<std::vector<int>> draw_lists(Draft& draft) {
  Random& random = draft.random;
  const int n = draft.world_size;
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (random.chance(60)) random.shuffle(ranks);
  return cut(ranks, random.chance(50) ? random.pick(divisors(n)) : random.between(1, n));
}

void draw_group(Draft& draft, const std::string& name) {
  Random& random = draft.random;
  const int n = draft.world_size;
  NamedGroup group{name, {}, false};
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (random.chance(25)) {
    const int size = random.pick(divisors(n));
    draft.file["groups"][name]["size"] = size;
    group.partition = cut(ranks, size);
  } else if (random.chance(33)) {
    const int stride = random.pick(divisors(n));
    draft.file["groups"][name]["stride"] = stride;
    group.partition.resize(static_cast<std::size_t>(stride));
    for (const int r : ranks) group.partition[static_cast<std::size_t>(r % stride)].push_back(r);
  } else {
    group.partition = draw_lists(draft);
    draft.file["groups"][name] = group.partition;
  }
  draft.groups.push_back(std::move(group));
}

double limit_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1000;
    case DType::kFloat32:
      return 200;
    default:
      return 24;
  }
}

}  // namespace

void draw_world(Draft& draft) {
  Random& random = draft.random;
  draft.world_size = random.pick(draft.choices.world_sizes);
  const int roll = random.between(0, 99);
  if (roll < 30) {
    draw_mesh(draft);
  } else {
    draft.file["world_size"] = draft.world_size;
  }
  if (roll >= 15 && roll < 60) draw_group(draft, "g");
  draft.dtype = random.pick(draft.choices.dtypes);
  if (draft.dtype != DType::kFloat64) draft.file["dtype"] = traits(draft.dtype).name;
  draft.limit = limit_of(draft.dtype);
  const int style = random.between(0, 99);
  draft.style = style < 50 ? Style::kExact : style < 80 ? Style::kSmooth : Style::kKinked;
}

}  // namespace distgrad::fuzz
