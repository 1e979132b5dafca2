// Reads what the command line says of cases: options that override a file's lists, and case names
// that select with the same words. Contract: docs/scenarios.md, "named
// path/to/file.json:subject=torch_nn,world_size=3".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// An empty list leaves the file's choice.
struct Overrides {
  std::vector<std::string> subjects;
  std::vector<int> world_sizes;
  std::vector<DType> dtypes;
  std::vector<std::string> backends;
  std::vector<Objective> objectives;
  std::vector<std::string> devices;
  std::vector<std::string> pythons;  // for subjects in Python
  bool allow_code = false;           // allows code that a file names to run
  // Returns why a case that wants a GPU, or another backend than Gloo, cannot run here, or "".
  // Called for such cases only.
  std::function<std::string(const Case&)> why_unavailable;
  std::string filter;  // selects cases whose id has this text
  std::optional<double> timeout_s;
};

// Sets a field from text, such as `2,3` of `--world-size 2,3` or `world_size=2,3`, or adds to one
// that is set. `field` is one of subject, world_size, dtype, backend, objective, device, python.
// Throws UserError.
void add_override(Overrides&, std::string_view field, std::string_view value);

// Returns the options, replaced by what a case's own name says.
Overrides narrowed(Overrides options, const Overrides& by_name);

struct CaseSelection {
  std::string path;
  Overrides fields;
};

// Splits "path.json:subject=torch_nn,world_size=3". A path may contain ':', '=' and ','. Throws
// UserError for a misspelt field.
CaseSelection parse_case_id(std::string_view text);

}  // namespace distgrad
