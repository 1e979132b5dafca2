// Describes one case's SPMD program, with everything resolved that can be without torch: one world
// size, one dtype, groups as lists of ranks. The driver sends it to the simulator and to the ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/array.h"
#include "model/collective_kind.h"
#include "model/dtype.h"

namespace distgrad {

// Holds an expression of the scenario language and the JSON pointer of its text, for messages.
struct Expression {
  std::string text;
  std::string pointer;  // "/steps/0/xx"
};

// Partitions the ranks: every rank is in exactly one list, and its place there is its rank in the
// group.
struct Group {
  std::string name;
  std::vector<std::vector<int>> partition;
  bool is_mesh_axis = false;

  // Returns the index of the list that holds `rank`, and the rank's place in it.
  std::pair<int, int> place_of(int rank) const;
};

struct Layout {
  enum class Kind { kLocal, kReplicate, kInvariant, kShard };
  Kind kind = Kind::kLocal;
  int dim = 0;  // kShard only; may be negative, as in torch
};

// Says how an input lies along one mesh axis or, if `axis` is empty, along the whole world.
struct AxisLayout {
  std::string axis;
  Layout layout;
};

struct RandomSpec {
  enum class Kind { kIntegers, kNormal, kUniform };
  std::vector<std::variant<std::int64_t, Expression>> shape;
  Kind kind = Kind::kIntegers;
  double low = -4;
  double high = 4;
  std::uint64_t seed = 0;
};

struct Input {
  std::string name;
  std::string pointer;
  // An Array is the same value on every rank, a vector<Array> has one value a rank. Whoever runs
  // the program computes Expression and RandomSpec in float64 and converts the result to the dtype.
  std::variant<Array, std::vector<Array>, Expression, RandomSpec> value;
  bool requires_grad = true;
  // Has one entry with an empty axis, or one for every mesh axis in mesh order.
  std::vector<AxisLayout> layout;
  // Lists the all-reduces (sum or mean) of the gradient after backward, by axis; an empty axis is
  // the world.
  enum class Sync { kSum, kMean };
  std::vector<std::pair<std::string, Sync>> sync;

  bool is_local() const {
    return layout.size() == 1 && layout[0].layout.kind == Layout::Kind::kLocal;
  }
};

struct CollectiveCall {
  CollectiveKind kind{};
  Expression operand;
  std::string group;  // empty: the world
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;       // premul_sum only
  int root = 0;            // within the group
  std::optional<int> dim;  // absent: the kind's default
  // Empty means even; all_to_all has a row for each rank, the others have one row.
  std::vector<std::vector<std::int64_t>> splits;
  std::vector<std::pair<int, int>> pairs;  // send_recv: source, destination, within the group
};

// Calls the user's own code on each rank, which may communicate as it likes. Only ranks in Python
// run it.
struct CodeCall {
  std::string code;  // "python:FILE.py:NAME" or "python:MODULE:NAME"
  std::vector<Expression> arguments;
  std::string simulate;  // code of this form that computes the truth for all ranks at once; empty:
                         // finite differences give it
};

struct Step {
  std::string name;
  std::string pointer;
  std::variant<Expression, CollectiveCall, CodeCall> what;

  const CollectiveCall* collective() const { return std::get_if<CollectiveCall>(&what); }
  const CodeCall* code() const { return std::get_if<CodeCall>(&what); }
  // Returns true if the ranks report the step's value: that of a collective or of a code call,
  // which may have communicated.
  bool is_reported() const { return !std::holds_alternative<Expression>(what); }
};

bool has_code(const std::vector<Step>&);
// Returns true if some code call has no `simulate`; then only the ranks themselves can measure the
// truth.
bool needs_differences(const std::vector<Step>&);

// Returns the text of every expression of a step, for callers that look for names in them.
std::string texts_of(const Step&);

// Describes the program as it would be on one device: names as in steps, inputs whole.
struct SingleDevice {
  std::vector<Step> steps;  // expressions only
  Expression loss;
};

struct Program {
  int world_size = 1;
  DType dtype = DType::kFloat64;
  std::vector<Group> groups;  // mesh axes first, in mesh order, then `groups` in the file's order
  std::vector<Input> inputs;
  std::vector<Step> steps;
  Expression loss;
  std::optional<SingleDevice> single_device;
  // Holds the file's own truth: numbers by rank for local inputs, one full tensor for the others,
  // or a closed form. An Array of shape [] ("nan", "inf", "-inf") stands for every element of every
  // rank.
  struct Truth {
    std::string input;
    std::string pointer;
    std::variant<Array, std::vector<Array>, Expression> value;
  };
  std::vector<Truth> truth;
  // Users' code runs in float64 whatever it casts to, or the run fails.
  bool is_widened = false;

  const Group* group_named(const std::string& name) const;
  // Returns the group's lists of ranks. The name "" is the world, which is one list.
  std::vector<std::vector<int>> partition_of(const std::string& group) const;
  std::vector<const Group*> mesh() const;  // the groups that are mesh axes, in order
};

}  // namespace distgrad
