// What the command line says of cases: options that override a file's lists, and case names that
// select with the same words. Contract: docs/scenarios.md, "named
// path/to/file.json:subject=torch_nn,world_size=3".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

// An empty list: as the file has it.
struct Overrides {
  std::vector<std::string> subjects;
  std::vector<int> world_sizes;
  std::vector<DType> dtypes;
  std::vector<std::string> backends;
  std::vector<Objective> objectives;
  std::vector<std::string> devices;
  std::vector<std::string> pythons;  // for subjects in Python
  bool allow_code = false;           // code that a file names may run
  // The version of torch that the interpreter has ("": the default one), for `when`; asked where a
  // case runs in Python.
  std::function<std::string(const std::string& python)> torch_of_python;
  // Why a case that wants a GPU, or another backend than Gloo, cannot run here; "" where it can.
  // Asked for such cases alone.
  std::function<std::string(const Case&)> why_unavailable;
  std::string filter;  // only cases whose id has this text
  std::optional<double> timeout_s;
};

// Sets a field from text, as `--world-size 2,3` or `world_size=2,3` in a case name have it; a field
// already set is added to. `field` is one of subject, world_size, dtype, backend, objective,
// device, python. Throws UserError.
void add_override(Overrides&, std::string_view field, std::string_view value);

// The options with what a case's own name says put in their place.
Overrides narrowed(Overrides options, const Overrides& by_name);

struct CaseSelection {
  std::string path;
  Overrides fields;
};

// Splits "path.json:subject=torch_nn,world_size=3"; a path may have ':', '=' and ',' in it. Throws
// UserError for a field that is misspelt.
CaseSelection parse_case_id(std::string_view text);

}  // namespace distgrad
