#include "dumps/dump.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace distgrad::dumps {
namespace {

template <typename Raw, typename Convert>
void convert(const std::byte* from, std::int64_t count, double* out, Convert to_double) {
  for (std::int64_t i = 0; i < count; ++i) {
    Raw raw;
    std::memcpy(&raw, from + i * static_cast<std::int64_t>(sizeof(Raw)), sizeof(Raw));
    out[i] = to_double(raw);
  }
}

double from_bfloat16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double compute_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double from_float16(std::uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(compute_float16(static_cast<std::uint16_t>(i)));
    return all;
  }();
  return table[bits];
}

}  // namespace

void read_elements(const DumpTensor& tensor, std::int64_t begin, std::int64_t count, double* out) {
  if (count == 0) return;
  const std::byte* from = tensor.data + begin * traits(tensor.dtype).bytes;
  switch (tensor.dtype) {
    case DType::kFloat64:
      std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(double));
      return;
    case DType::kFloat32:
      convert<float>(from, count, out, [](float v) { return static_cast<double>(v); });
      return;
    case DType::kBFloat16:
      convert<std::uint16_t>(from, count, out, from_bfloat16);
      return;
    case DType::kFloat16:
      convert<std::uint16_t>(from, count, out, from_float16);
      return;
  }
}

int Dump::world_size() const {
  int size = static_cast<int>(ranks.size());
  for (const RankDump& r : ranks) size = std::max({size, r.world_size.value_or(0), r.rank + 1});
  return size;
}

std::vector<int> Dump::absent_ranks() const {
  std::vector<int> absent;
  if (ranks.size() == 1 && ranks[0].rank == kWhole) return absent;
  auto next = ranks.begin();
  for (int rank = 0, size = world_size(); rank < size; ++rank) {
    if (next != ranks.end() && next->rank == rank)
      ++next;
    else
      absent.push_back(rank);
  }
  return absent;
}

const DumpMesh* Dump::mesh() const {
  const auto size = static_cast<std::size_t>(world_size());
  const DumpMesh* found = nullptr;
  for (const RankDump& r : ranks)
    for (const DumpMesh& mesh : r.meshes)
      if (mesh.ranks.size() == size && (!found || mesh.axes.size() > found->axes.size()))
        found = &mesh;
  return found;
}

std::vector<DumpGroups> Dump::groups() const {
  std::vector<DumpGroup> left;
  std::set<DumpGroup> known;
  const auto size = static_cast<std::size_t>(world_size());
  for (const RankDump& r : ranks)
    for (const DumpGroup& group : r.groups)
      if (group.ranks.size() < size && known.insert(group).second) left.push_back(group);
  std::vector<DumpGroups> all;
  while (!left.empty()) {
    const DumpGroup first = left.front();
    DumpGroups& together = all.emplace_back(DumpGroups{first.name, {}});
    std::set<int> taken;
    std::erase_if(left, [&](const DumpGroup& group) {
      const bool overlaps = std::any_of(group.ranks.begin(), group.ranks.end(),
                                        [&](int rank) { return taken.count(rank) > 0; });
      if (group.name != first.name || group.ranks.size() != first.ranks.size() || overlaps)
        return false;
      taken.insert(group.ranks.begin(), group.ranks.end());
      together.ranks.push_back(group.ranks);
      return true;
    });
  }
  return all;
}

void Dump::strip_prefix(const std::string& prefix) {
  for (RankDump& rank : ranks)
    for (auto at = rank.gradients.lower_bound(prefix);
         at != rank.gradients.end() && at->first.starts_with(prefix);) {
      const std::string name = at->first.substr(prefix.size());
      auto node = rank.gradients.extract(at++);
      if (!name.empty() && rank.gradients.count(name) == 0) node.key() = name;
      rank.gradients.insert(std::move(node));
    }
}

}  // namespace distgrad::dumps
