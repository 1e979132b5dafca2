// What kind of error a case ended with. Source: command-line contract, "JSON report".
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace distgrad {

enum class ErrorKind {
  kException,  // a rank, or what it ran, raised
  kCrash,      // a rank died, or said what no rank says
  kHang,       // a rank did not come where the others wait, or was not done in time
  kDesync,     // ranks wait in different collectives
  kBackend,    // a connection or a device failed
  kSubject     // the subject cannot be loaded: no case is to blame
};

// By the values of ErrorKind; as ranks and reports have them.
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
