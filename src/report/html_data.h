// Holds what the script of an HTML report works on: an index of all cases, and the details of those
// that fit, in pieces that are read when one of their cases is opened.
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
  std::size_t without_details = 0;  // cases that did not fit
  std::size_t without_maps = 0;     // cases that went wrong and have everything but heat maps
};

// Returns true if the printed text may explain what the gradients alone do not.
bool is_explained_above(const FindingRow&, const Report&);

// Returns only JSON that is inert within a script element.
HtmlData html_data(const Report&, const FormatContext&);

// Returns "FAIL", "ERR", "ok", "skip" or "disp", as in the text report.
std::string_view status_word(const CaseResult&);

}  // namespace distgrad
