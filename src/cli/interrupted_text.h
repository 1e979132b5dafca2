// Why an interrupted command has ended.
#pragma once

#include <string>

#include "base/visible_text.h"
#include "launched/leader.h"

namespace distgrad {

// A launcher that has lost a rank interrupts the others: then the rank is what matters.
inline std::string interrupted_text() {
  const std::string loss = leader() ? leader()->loss() : "";
  return loss.empty() ? "interrupted" : "interrupted; " + visible_text(loss, Lines::kKept);
}

}  // namespace distgrad
