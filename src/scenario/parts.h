// Holds what the parts of the parser share. Each reads some keys of the file into the scenario.
// Internal to this folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/scenario.h"
#include "scenario/fields.h"
#include "scenario/json_tree.h"

namespace distgrad {

inline constexpr int kMaxWorldSize = 4096;
inline constexpr int kMaxDim = 63;  // torch's tensors have at most 64 dimensions

struct Parts {
  JsonValue root;
  Scenario& scenario;
  Problems& problems;

  std::optional<JsonValue> key(std::string_view name) const { return root.member(name); }
};

// Call them in this order, as later ones use what earlier ones read. All go on after a problem as
// well as they can.
void read_names(Parts&);          // parse_names.cpp
void read_world(Parts&);          // parse_world.cpp: world_size, mesh, groups
void read_inputs(Parts&);         // parse_inputs.cpp
void read_sync(Parts&);           // parse_inputs.cpp
void read_steps(Parts&);          // parse_steps.cpp: steps, loss
void read_single_device(Parts&);  // parse_steps.cpp
void read_objective(Parts&);      // parse_objective.cpp
void read_truth(Parts&);          // parse_truth.cpp
void read_tolerance(Parts&);      // parse_truth.cpp
void read_subjects(Parts&);       // parse_subjects.cpp

std::optional<Expression> read_expression(const JsonValue&, Problems&);  // parse_steps.cpp
std::vector<std::string> options_of(const CollectiveTraits&);            // parse_steps.cpp
const Input* input_named(const Scenario&, std::string_view name);        // parse_inputs.cpp
std::vector<std::string> input_names(const Scenario&);                   // parse_inputs.cpp
std::vector<std::string> axis_names(const Scenario&);                    // parse_world.cpp

// Checks that every key of `objective`, `layout` or `sync` is a mesh axis; else returns false and
// adds problems.
bool check_axes(const JsonValue& by_axis, const Scenario&, Problems&);  // parse_world.cpp

}  // namespace distgrad
