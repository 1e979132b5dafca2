// Lists the kinds of error that a case can end with. Source: command-line contract, "JSON report".
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace distgrad {

enum class ErrorKind {
  kException,  // a rank, or code that it ran, raised
  kCrash,      // a rank died, or sent something that no rank sends
  kHang,       // a rank did not reach the others, or was not done in time
  kDesync,     // ranks wait in different collectives
  kBackend,    // a connection or a device failed
  kSubject     // the subject cannot be loaded: no case is to blame
};

// The names are in the order of ErrorKind; ranks and reports use them.
inline constexpr std::array<std::string_view, 6> kErrorKinds = {"exception", "crash",   "hang",
                                                                "desync",    "backend", "subject"};

constexpr std::string_view name_of(ErrorKind kind) {
  return kErrorKinds[static_cast<std::size_t>(kind)];
}

constexpr std::optional<ErrorKind> error_kind_named(std::string_view name) {
  for (std::size_t i = 0; i < kErrorKinds.size(); ++i)
    if (kErrorKinds[i] == name) return static_cast<ErrorKind>(i);
  return std::nullopt;
}

}  // namespace distgrad
