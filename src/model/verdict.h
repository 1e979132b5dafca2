// Lists what a case can come to. Source: command-line contract, "Verdicts".
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace distgrad {

enum class Verdict { kMatch, kMismatch, kError, kSkipped, kDisputed };

// The names are in the order of Verdict; files and reports use them.
inline constexpr std::array<std::string_view, 5> kVerdicts = {"match", "mismatch", "error",
                                                              "skipped", "disputed"};

constexpr std::string_view name_of(Verdict verdict) {
  return kVerdicts[static_cast<std::size_t>(verdict)];
}

constexpr std::optional<Verdict> verdict_named(std::string_view name) {
  for (std::size_t i = 0; i < kVerdicts.size(); ++i)
    if (kVerdicts[i] == name) return static_cast<Verdict>(i);
  return std::nullopt;
}

}  // namespace distgrad
