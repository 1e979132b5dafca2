// Writes the parts of a script. Each is Python source that ends with a newline, or empty where the
// script does without it. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "repro/repro.h"

namespace distgrad {

// Renames those of the user's names that the script needs itself.
Program with_free_names(Program);

std::string header_part(const ReproCase&);

// Holds what runs the collectives: the classes and functions, and the text that each step writes.
struct CollectiveParts {
  std::vector<std::string> definitions;  // classes and functions for the real run
  std::vector<std::string> calls;        // by step, such as "AllReduce.apply(x * 2)"; empty for
                                         // expressions
};
CollectiveParts collective_parts(const ReproCase&, const Program&, bool attach);

std::string inputs_part(const Program&);  // defines inputs()
std::string program_part(const ReproCase&, const Program&, const CollectiveParts&, bool attach);
std::string observed_part(const ReproCase&, const Program&);  // defines observed(rank)
std::string truth_part(const ReproCase&, const Program&);
// Writes what measure(rank) (script/measuring.py) needs where only the ranks' forward run is known.
// Throws UserError where measured slopes are not the truth.
std::string measured_truth_part(const ReproCase&, const Program&);
std::string objective_line(const std::vector<double>& weights);  // sets J from `losses`
std::string guards_part(const ReproCase&,
                        const Program&);  // the one-device program, or the file's truth
std::string rows_part(const ReproCase&, const Program&);  // says what is compared with what

}  // namespace distgrad
