#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "dumps/parameter.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

bool are_equal(const Stream& a, const Stream& b, const Bound& bound) {
  const Differences d = measure(a, b, bound);
  return d.unknown == 0 && within(d, bound);
}

bool are_copies(const DumpTensor& a, const DumpTensor& b, const Tolerance& tolerance) {
  if (a.shape != b.shape) return false;
  const auto bytes = static_cast<std::size_t>(a.size() * traits(a.dtype).bytes);
  if (a.dtype == b.dtype && (bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0)) return true;
  return are_equal(whole_stream(b), whole_stream(a), tolerance.bound(a.dtype, 0));
}

Reference unclear(std::string why) {
  Reference reference;
  reference.kind = Reference::Kind::kUnclear;
  reference.why = std::move(why);
  return reference;
}

// --- Without placements ---

Reference copies_or_local(const std::vector<PieceOnRank>& pieces, const Tolerance& tolerance) {
  Reference reference;
  bool copies = true;
  const DumpTensor* first = nullptr;
  for (const PieceOnRank& piece : pieces) {
    if (piece.tensor() == nullptr) continue;
    reference.by_rank[piece.rank] = *piece.tensor();
    if (first == nullptr) first = piece.tensor();
    copies = copies && are_copies(*first, *piece.tensor(), tolerance);
  }
  copies = copies && reference.by_rank.size() == pieces.size();
  reference.kind = copies ? Reference::Kind::kFull : Reference::Kind::kByRank;
  if (copies) reference.full = *first;
  return reference;
}

// --- With placements ---

// Says what one copy of a part of the tensor is made of: one piece or, with Partial, the shares of
// several ranks.
struct Copy {
  Share share;
  std::vector<const PieceOnRank*> pieces;

  Stream stream() const {
    Stream stream;
    for (const PieceOnRank* piece : pieces) stream.terms.emplace_back(*piece->tensor());
    stream.factor = share.factor;
    stream.reduction = share.reduction;
    return stream;
  }
};

struct BoxOrder {
  bool operator()(const Box& a, const Box& b) const {
    return std::tie(a.offset, a.extent) < std::tie(b.offset, b.extent);
  }
};
// Maps each part to its copies, by what the ranks that make up one copy share.
using Parts = std::map<Box, std::map<std::vector<int>, Copy>, BoxOrder>;

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

// Returns why the parts do not make one tensor, or "" if they do.
std::string fault_of(const Parts& parts, const Shape& shape, const Tolerance& tolerance) {
  for (const auto& [box, copies] : parts) {
    const Copy& first = copies.begin()->second;
    for (const auto& [key, copy] : copies) {
      if (static_cast<int>(copy.pieces.size()) != copy.share.shares)
        return fmt::format("shares of its sum are missing beside rank {}'s",
                           copy.pieces.front()->rank);
      const Bound bound = tolerance.bound(first.pieces.front()->tensor()->dtype, 0);
      if (!are_equal(copy.stream(), first.stream(), bound))
        return fmt::format("ranks {} and {} hold different values where they should hold copies",
                           first.pieces.front()->rank, copy.pieces.front()->rank);
    }
  }
  if (covered_elements(parts) != element_count(shape)) return "pieces of it are missing";
  return {};
}

Reference joined_by_placements(const std::vector<PieceOnRank>& pieces, const Tolerance& tolerance) {
  Parts parts;
  const Shape* shape = nullptr;
  for (const PieceOnRank& piece : pieces) {
    if (piece.tensor() == nullptr) continue;
    if (piece.layout() == nullptr)
      return unclear(fmt::format("rank {} does not say what piece it holds", piece.rank));
    if (shape == nullptr) shape = &piece.layout()->full_shape;
    if (*shape != piece.layout()->full_shape) return unclear("its ranks do not agree on its shape");
    std::string why;
    auto share = share_of(piece, why);
    if (!share) return unclear(std::move(why));
    const std::vector<int> key = share->key;
    parts[*placed_box(*piece.layout(), piece.mesh(), piece.rank)]
        .emplace(key, Copy{std::move(*share), {}})
        .first->second.pieces.push_back(&piece);
  }
  if (std::string fault = fault_of(parts, *shape, tolerance); !fault.empty())
    return unclear(std::move(fault));
  Reference reference;
  reference.kind = Reference::Kind::kFull;
  const Copy& first = parts.begin()->second.begin()->second;
  const bool whole = parts.size() == 1 && first.share.shares == 1;
  reference.full = whole ? *first.pieces.front()->tensor() : joined(parts, *shape);
  return reference;
}

}  // namespace

Reference reference_of(Holders& holders, const std::string& name, const Tolerance& tolerance) {
  const std::vector<PieceOnRank> pieces = holders.of(name);
  Reference reference;
  const bool present = std::any_of(pieces.begin(), pieces.end(),
                                   [](const PieceOnRank& p) { return p.tensor() != nullptr; });
  if (!present) return reference;
  const bool placed = std::any_of(pieces.begin(), pieces.end(),
                                  [](const PieceOnRank& p) { return p.layout() != nullptr; });
  reference = placed ? joined_by_placements(pieces, tolerance) : copies_or_local(pieces, tolerance);
  for (const PieceOnRank& piece : pieces)
    if (piece.tensor()) reference.dtype = coarser(piece.tensor()->dtype, reference.dtype);
  return reference;
}

}  // namespace distgrad::dumps
