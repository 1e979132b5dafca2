// The parts of a script; each is Python source that ends with a newline, or empty where the script
// does without. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "repro/repro.h"

namespace distgrad {

// The case with the user's names that the script needs for itself exchanged.
Program with_free_names(Program);

std::string header_part(const ReproCase&);

// What runs the collectives: the classes and functions, and what each step writes.
struct CollectiveParts {
  std::vector<std::string> definitions;  // classes and functions for the real run
  std::vector<std::string> calls;        // by step: "AllReduce.apply(x * 2)"; empty for expressions
};
CollectiveParts collective_parts(const ReproCase&, const Program&, bool attach);

std::string inputs_part(const Program&);  // inputs()
std::string program_part(const ReproCase&, const Program&, const CollectiveParts&, bool attach);
std::string observed_part(const ReproCase&, const Program&);  // observed(rank)
std::string truth_part(const ReproCase&, const Program&);
// What measure(rank) asks for (script/measuring.py), where nothing but the ranks' forward run is
// known. Throws UserError where their slopes are not the truth.
std::string measured_truth_part(const ReproCase&, const Program&);
std::string objective_line(const std::vector<double>& weights);  // sets J, of `losses`
std::string guards_part(const ReproCase&,
                        const Program&);  // the one-device program, or the file's truth
std::string rows_part(const ReproCase&, const Program&);  // what is compared with what

}  // namespace distgrad
