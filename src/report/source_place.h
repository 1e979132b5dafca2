// Where a reader should look, as code hosts want to be told.
#pragma once

#include <string>

#include "model/report.h"

namespace distgrad {

struct SourcePlace {
  std::string file;
  int line = 1;
};

// The code under test where it lies in a Python file that the subject names and that can be read:
// the `backward` of an autograd function, else where the function is defined. Else the place in the
// scenario: the step that the first finding or the error blames, else what the file says of the
// subject, else its first line.
SourcePlace place_of_case(const CaseResult&);

// `file` relative to the folder `root`, with slashes, where it lies below it; else absolute.
std::string path_below(const std::string& file, const std::string& root);

// The case's id with its file below `root`: the same on every machine.
std::string id_below(const CaseResult&, const std::string& root);

}  // namespace distgrad
