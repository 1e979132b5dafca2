// The picture in the summary of an HTML report: as a rule a row a scenario file, a column a
// subject.
#pragma once

#include <string>
#include <string_view>

#include "model/report.h"

namespace distgrad {

// Each cell says what the worst of its cases came to, links to them, and has its finding's colour.
// Files with failures come first. Empty where there is one file, or one subject.
std::string matrix_html(const Report& report);

// The picture that a report brings along, in its place.
std::string picture_html(const Picture& picture);

// As a part of an address: "#file=" + encoded(...).
std::string encoded(std::string_view text);

}  // namespace distgrad
