// The findings by name: what a wrong gradient may be explained as. Source: command-line contract,
// "Findings".
#pragma once

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace distgrad {

struct FindingRow {
  std::string_view name;
  std::string_view meaning;  // one line, for somebody who has read nothing else
};

inline constexpr std::array<FindingRow, 27> kFindings = {{
    // name, meaning
    {"objective", "the gradients are right for another objective than the declared one"},
    {"program", "the distributed program computes another loss or gradient than `single_device`"},
    {"identity-backward",
     "the backward passed the rank's own cotangent on and dropped the other ranks'"},
    {"same-op-backward", "the backward applied the collective's own reduction to the cotangents"},
    {"forgotten-op", "the backward is that of a sum, whatever the op was"},
    {"own-slice", "each rank got only what its own loss saw of its slice"},
    {"wrong-slice", "another mix of slices or roots than the right one"},
    {"missing-reduction", "some rank's cotangent is absent from a sum (dropped or detached)"},
    {"double-reduction", "cotangents were summed twice"},
    {"scaled", "the gradient is the truth times a constant: N, 1/N, a group's size or another"},
    {"zero-input", "the derivative of a product is wrong where an operand is 0"},
    {"tie", "the derivative of min or max is wrong where ranks tie"},
    {"no-gradient", "the gradient is missing (None) where the truth is not zero"},
    {"unsynchronised", "ranks disagree where they must agree"},
    {"stale-or-aliased",
     "a buffer was reused or never written, or a cotangent was modified in place"},
    {"contiguity", "wrong only where the cotangent or the operand is not contiguous"},
    {"precision", "a narrower dtype was used on the way"},
    {"group-rank", "global ranks and ranks within the group were confused"},
    {"wrong-group", "the reduction ran over another group"},
    {"forward", "the forward value itself differs"},
    {"nondeterministic", "two runs of the same case differ"},
    {"truth", "the file's own `truth` is not what the program gives"},
    {"other-backward",
     "the backward of a call was measured, and no name fits: its formula is reported"},
    {"shape", "a saved gradient has another shape than the reference's"},
    {"unknown", "a saved gradient is in one of the two runs only"},
    {"vacuous", "the match shows nothing: no wrong backward would have changed a gradient"},
    {"unexplained", "the gradients are wrong, and it could neither be measured nor recognised why"},
}};

// Its place in kFindings; -1: it is none.
constexpr int finding_index(std::string_view name) {
  for (std::size_t i = 0; i < kFindings.size(); ++i)
    if (kFindings[i].name == name) return static_cast<int>(i);
  return -1;
}

// One of kFindings, or none. A literal that is not among them does not compile.
class FindingName {
 public:
  constexpr FindingName() = default;
  consteval FindingName(const char* name) : index_(finding_index(name)) {
    if (index_ < 0) throw std::invalid_argument("no such finding");
  }

  static constexpr std::optional<FindingName> named(std::string_view name) {
    FindingName found;
    found.index_ = finding_index(name);
    return found.empty() ? std::nullopt : std::optional(found);
  }

  constexpr bool empty() const { return index_ < 0; }
  constexpr std::string_view text() const {
    return empty() ? "" : kFindings[static_cast<std::size_t>(index_)].name;
  }
  operator std::string() const { return std::string(text()); }

  friend constexpr bool operator==(FindingName, FindingName) = default;

 private:
  int index_ = -1;
};

}  // namespace distgrad
