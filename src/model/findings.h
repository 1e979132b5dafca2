// The findings by name: what a wrong gradient may be explained as. Source: command-line contract,
// "Findings".
#pragma once

#include <array>
#include <string_view>

namespace distgrad {

struct FindingRow {
  std::string_view name;
  std::string_view meaning;  // one line, for somebody who has read nothing else
};

inline constexpr std::array<FindingRow, 24> kFindings = {{
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
    {"unexplained", "the gradients are wrong, and it could neither be measured nor recognised why"},
}};

}  // namespace distgrad
