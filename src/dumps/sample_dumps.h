// Makes dumps by hand, for the tests: in memory, and as .safetensors files.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "dumps/dump.h"

namespace distgrad::dumps::sample {

inline DumpTensor tensor(Shape shape, std::vector<float> values) {
  auto kept = std::make_shared<std::vector<float>>(std::move(values));
  DumpTensor t;
  t.dtype = DType::kFloat32;
  t.shape = std::move(shape);
  t.data = reinterpret_cast<const std::byte*>(kept->data());
  t.keeper = kept;
  return t;
}

inline DumpTensor vector(std::vector<float> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return tensor({n}, std::move(values));
}

// Rounds to bfloat16, as a model in that dtype saves its gradients.
inline DumpTensor bfloat16(Shape shape, const std::vector<float>& values) {
  auto kept = std::make_shared<std::vector<std::uint16_t>>();
  for (const float v : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &v, sizeof(bits));
    kept->push_back(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
  DumpTensor t;
  t.dtype = DType::kBFloat16;
  t.shape = std::move(shape);
  t.data = reinterpret_cast<const std::byte*>(kept->data());
  t.keeper = kept;
  return t;
}

// Returns numbers without any simple relation, the same for the same seed.
inline std::vector<float> numbers(std::size_t n, unsigned seed) {
  std::vector<float> values;
  std::uint64_t state = seed * 2654435761u + 12345;
  for (std::size_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(static_cast<float>(static_cast<double>(state >> 33) / 1073741824.0 - 1.0));
  }
  return values;
}

// Most tests compare with these numbers.
inline constexpr std::size_t kSize = 24;
inline const std::vector<float> truth = numbers(kSize, 1);

inline std::vector<float> times(std::vector<float> values, float factor) {
  for (float& v : values) v *= factor;
  return values;
}

inline std::vector<float> plus(std::vector<float> values, const std::vector<float>& others) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += others[i];
  return values;
}

inline Dump whole(const std::string& name, DumpTensor t) {
  Dump dump;
  dump.path = "reference";
  dump.ranks.emplace_back().gradients[name].tensor = std::move(t);
  return dump;
}

// Makes one copy or piece a rank, without metadata.
inline Dump by_rank(const std::string& name, std::vector<std::optional<DumpTensor>> tensors) {
  Dump dump;
  dump.path = "observed";
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    RankDump& rank = dump.ranks.emplace_back();
    rank.rank = static_cast<int>(r);
    rank.gradients[name].tensor = std::move(tensors[r]);
  }
  return dump;
}

inline DumpMesh mesh(std::vector<DumpAxis> axes) {
  DumpMesh m{std::move(axes), {}};
  int size = 1;
  for (const DumpAxis& axis : m.axes) size *= axis.size;
  for (int r = 0; r < size; ++r) m.ranks.push_back(r);
  return m;
}

inline void place(Dump& dump, const std::string& name, const DumpMesh& on, const Shape& full,
                  const std::vector<DumpPlacement>& placements) {
  for (RankDump& rank : dump.ranks) {
    rank.meshes = {on};
    rank.gradients[name].layout = DumpLayout{full, 0, placements};
  }
}

// Returns a .safetensors file with the header as given, however wrong it is.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

inline void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace distgrad::dumps::sample
