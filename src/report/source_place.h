// Where in the scenario files a reader should look, as code hosts want to be told.
#pragma once

#include <string>

#include "model/report.h"

namespace distgrad {

// The line of what went wrong: the step that the first finding or the error blames, else what the
// file says of the subject, else its first line. From 1.
int line_of_case(const CaseResult&);

// `file` relative to the folder `root`, with slashes, where it lies below it; else absolute.
std::string path_below(const std::string& file, const std::string& root);

// The case's id with its file below `root`: the same on every machine.
std::string id_below(const CaseResult&, const std::string& root);

}  // namespace distgrad
