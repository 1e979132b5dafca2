#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "dumps/parameter.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

struct Piece {
  int rank;
  const DumpTensor* tensor;  // null: none
  const DumpLayout* layout;  // null: none said
  const DumpMesh* mesh;
};

std::vector<Piece> pieces_of(const Dump& dump, const std::string& name) {
  std::vector<Piece> pieces;
  for (const RankDump& rank : dump.ranks) {
    const auto found = rank.gradients.find(name);
    if (found == rank.gradients.end() && rank.lists_all) continue;
    Piece& piece = pieces.emplace_back(Piece{rank.rank, nullptr, nullptr, nullptr});
    if (found == rank.gradients.end()) continue;
    if (found->second.tensor) piece.tensor = &*found->second.tensor;
    if (!found->second.layout) continue;
    piece.layout = &*found->second.layout;
    piece.mesh = &rank.meshes[piece.layout->mesh];
  }
  return pieces;
}

Bound bound_of_copies(const DumpTensor& tensor, const ToleranceOptions& options) {
  const DType dtype = options.dtype.value_or(tensor.dtype);
  return {options.rtol.value_or(std::max(default_rtol(dtype), default_rtol(tensor.dtype))),
          options.atol, 0, options.elementwise};
}

bool are_copies(const DumpTensor& a, const DumpTensor& b, const ToleranceOptions& options) {
  if (a.shape != b.shape) return false;
  const auto bytes = static_cast<std::size_t>(a.size() * traits(a.dtype).bytes);
  if (a.dtype == b.dtype && (bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0)) return true;
  const Bound bound = bound_of_copies(a, options);
  return within(measure(whole_stream(b), whole_stream(a), bound), bound);
}

Reference unclear(std::string why) {
  Reference reference;
  reference.kind = Reference::Kind::kUnclear;
  reference.why = std::move(why);
  return reference;
}

// --- Without placements ---

Reference copies_or_local(const std::vector<Piece>& pieces, const ToleranceOptions& options) {
  Reference reference;
  bool copies = true;
  const DumpTensor* first = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.tensor == nullptr) continue;
    reference.by_rank[piece.rank] = *piece.tensor;
    if (first == nullptr) first = piece.tensor;
    copies = copies && are_copies(*first, *piece.tensor, options);
  }
  copies = copies && reference.by_rank.size() == pieces.size();
  reference.kind = copies ? Reference::Kind::kFull : Reference::Kind::kByRank;
  if (copies) reference.full = *first;
  return reference;
}

// --- With placements ---

// What one copy of a part of the tensor is made of: one piece, or with Partial the shares of
// several ranks.
struct Copy {
  std::vector<const Piece*> shares;
  int expected_shares = 1;
  bool averaged = false;

  Stream stream() const {
    Stream stream;
    for (const Piece* piece : shares) stream.terms.emplace_back(*piece->tensor);
    if (averaged) stream.factor = 1.0 / expected_shares;
    return stream;
  }
};

struct BoxOrder {
  bool operator()(const Box& a, const Box& b) const {
    return std::tie(a.offset, a.extent) < std::tie(b.offset, b.extent);
  }
};
// The copies of each part, by what the ranks that make up one copy have in common.
using Parts = std::map<Box, std::map<std::vector<int>, Copy>, BoxOrder>;

std::vector<int> copy_key(const Piece& piece, Copy& copy) {
  std::vector<int> key = coordinate_of(*piece.mesh, piece.rank);
  for (std::size_t axis = 0; axis < key.size(); ++axis) {
    const DumpPlacement& placement = piece.layout->placements[axis];
    if (placement.kind != DumpPlacement::Kind::kPartial) continue;
    key[axis] = -1;
    copy.expected_shares *= piece.mesh->axes[axis].size;
    copy.averaged = copy.averaged || placement.op == "avg";
  }
  key.insert(key.end(), piece.mesh->ranks.begin(), piece.mesh->ranks.end());
  return key;
}

std::int64_t covered_elements(const Parts& parts) {
  std::int64_t covered = 0;
  for (const auto& [box, copies] : parts) covered += box.size();
  return covered;
}

DumpTensor joined(const Parts& parts, const Shape& shape) {
  auto values =
      std::make_shared<std::vector<double>>(static_cast<std::size_t>(element_count(shape)));
  std::vector<double> part;
  for (const auto& [box, copies] : parts) {
    part.resize(static_cast<std::size_t>(box.size()));
    copies.begin()->second.stream().read(0, box.size(), part.data());
    const BoxRuns runs(box);
    for (std::int64_t at = 0; at < box.size();) {
      const BoxRuns::Run run = runs.at(at);
      std::copy_n(part.begin() + at, run.length, values->begin() + run.start);
      at += run.length;
    }
  }
  DumpTensor tensor;
  tensor.shape = shape;
  tensor.data = reinterpret_cast<const std::byte*>(values->data());
  tensor.keeper = std::move(values);
  return tensor;
}

// Why the parts do not make one tensor; empty: they do.
std::string fault_of(const Parts& parts, const Shape& shape, const ToleranceOptions& options) {
  for (const auto& [box, copies] : parts) {
    const Copy& first = copies.begin()->second;
    for (const auto& [key, copy] : copies) {
      if (static_cast<int>(copy.shares.size()) != copy.expected_shares)
        return fmt::format("shares of its sum are missing beside rank {}'s",
                           copy.shares.front()->rank);
      const Bound bound = bound_of_copies(*first.shares.front()->tensor, options);
      if (!within(measure(copy.stream(), first.stream(), bound), bound))
        return fmt::format("ranks {} and {} hold different values where they should hold copies",
                           first.shares.front()->rank, copy.shares.front()->rank);
    }
  }
  if (covered_elements(parts) != element_count(shape)) return "pieces of it are missing";
  return {};
}

Reference joined_by_placements(const std::vector<Piece>& pieces, const ToleranceOptions& options) {
  Parts parts;
  const Shape* shape = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.tensor == nullptr) continue;
    if (piece.layout == nullptr)
      return unclear(fmt::format("rank {} does not say what piece it holds", piece.rank));
    if (shape == nullptr) shape = &piece.layout->full_shape;
    if (*shape != piece.layout->full_shape) return unclear("its ranks do not agree on its shape");
    for (const DumpPlacement& p : piece.layout->placements)
      if (p.kind == DumpPlacement::Kind::kPartial && p.op != "sum" && p.op != "avg")
        return unclear(fmt::format("it is Partial({})", p.op));
    Copy copy;
    const std::vector<int> key = copy_key(piece, copy);
    parts[*placed_box(*piece.layout, *piece.mesh, piece.rank)]
        .emplace(key, copy)
        .first->second.shares.push_back(&piece);
  }
  if (std::string fault = fault_of(parts, *shape, options); !fault.empty())
    return unclear(std::move(fault));
  Reference reference;
  reference.kind = Reference::Kind::kFull;
  const Copy& first = parts.begin()->second.begin()->second;
  const bool whole = parts.size() == 1 && first.expected_shares == 1;
  reference.full = whole ? *first.shares.front()->tensor : joined(parts, *shape);
  return reference;
}

}  // namespace

Reference reference_of(const Dump& dump, const std::string& name, const ToleranceOptions& options) {
  const std::vector<Piece> pieces = pieces_of(dump, name);
  Reference reference;
  const bool present =
      std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.tensor != nullptr; });
  if (!present) return reference;
  const bool placed =
      std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.layout != nullptr; });
  reference = placed ? joined_by_placements(pieces, options) : copies_or_local(pieces, options);
  for (const Piece& piece : pieces)
    if (piece.tensor != nullptr &&
        unit_roundoff(piece.tensor->dtype) > unit_roundoff(reference.dtype))
      reference.dtype = piece.tensor->dtype;
  return reference;
}

}  // namespace distgrad::dumps
