#include "report/valid_text.h"

#include "base/visible_text.h"

namespace distgrad {

std::string valid_text(std::string_view text) { return visible_text(text, Lines::kKept); }

}  // namespace distgrad
