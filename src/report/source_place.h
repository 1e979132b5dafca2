// Says where a reader should look, as code hosts want to be told.
#pragma once

#include <string>

#include "model/report.h"

namespace distgrad {

struct SourcePlace {
  std::string file;
  int line = 1;
};

// Returns the code under test if it lies in a readable Python file that the subject names: the
// `backward` of an autograd function, else where the function is defined. Otherwise returns the
// place in the scenario: the step that the first finding or the error blames, else the subject's
// entry, else the first line.
SourcePlace place_of_case(const CaseResult&);

// Makes a Scenario whose cases lie at a function's definition, which is "train.py:12" or
// "train.py:NAME", or in the file `otherwise` if there is none.
Scenario scenario_at(const std::string& place, const std::string& otherwise);

// Returns `file` relative to the folder `root`, with slashes, if it lies below it; else absolute.
std::string path_below(const std::string& file, const std::string& root);

// Returns the case's id with its file relative to `root`, which is the same on every machine.
std::string id_below(const CaseResult&, const std::string& root);

}  // namespace distgrad
