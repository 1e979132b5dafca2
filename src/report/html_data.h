// What the script of an HTML report works on: an index of all cases, and the details of those that
// there is room for, in pieces that are read when one of their cases is opened.
#pragma once

#include <string>
#include <vector>

#include "model/findings.h"
#include "report/report_format.h"

namespace distgrad {

struct HtmlData {
  std::string index;                // JSON
  std::string texts;                // JSON: those that details refer to by number
  std::vector<std::string> pieces;  // JSON: lists of details
  std::size_t without_details = 0;  // cases that there was no room for
  std::size_t without_maps = 0;     // cases that went wrong, and have all but heat maps
};

// Whether the text that was printed may explain what the gradients alone do not.
bool is_explained_above(const FindingRow&, const Report&);

// All are JSON that is inert within a script element.
HtmlData html_data(const Report&, const FormatContext&);

// "FAIL", "ERR", "ok", "skip", "disp": as the text report has it.
std::string_view status_word(const CaseResult&);

}  // namespace distgrad
