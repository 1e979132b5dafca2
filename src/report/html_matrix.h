// Draws the picture in the summary of an HTML report, usually a row a scenario file and a column a
// subject.
#pragma once

#include <string>
#include <string_view>

#include "model/report.h"

namespace distgrad {

// Shows in each cell what the worst of its cases came to, with links and the finding's colour.
// Files with failures come first. Returns "" if there is one file, or one subject.
std::string matrix_html(const Report& report);

// Draws the picture that a report brings along instead.
std::string picture_html(const Picture& picture);

// Encodes text as a part of an address: "#file=" + encoded(...).
std::string encoded(std::string_view text);

}  // namespace distgrad
