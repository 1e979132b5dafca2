// One case's SPMD program with everything resolved that can be without torch: one world size, one
// dtype, groups as lists of ranks. It is what the driver sends to the simulator and to the ranks.
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

// An expression of the scenario language and the JSON pointer of its text, for messages.
struct Expression {
  std::string text;
  std::string pointer;  // "/steps/0/xx"
};

// A named partition of the ranks: every rank is in exactly one list; the order in a list is the
// rank in the group.
struct Group {
  std::string name;
  std::vector<std::vector<int>> partition;
  bool is_mesh_axis = false;

  // Index of the list that holds `rank`, and the rank's place in it.
  std::pair<int, int> place_of(int rank) const;
};

struct Layout {
  enum class Kind { kLocal, kReplicate, kInvariant, kShard };
  Kind kind = Kind::kLocal;
  int dim = 0;  // kShard only; may be negative, as in torch
};

// How an input lies along one mesh axis, or (axis empty) along the whole world.
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
  // Array: the same value on every rank. vector<Array>: by rank. Expression and RandomSpec:
  // computed by whoever runs the program (in float64, then converted to the dtype).
  std::variant<Array, std::vector<Array>, Expression, RandomSpec> value;
  bool requires_grad = true;
  std::vector<AxisLayout>
      layout;  // one entry with an empty axis, or one for every mesh axis in mesh order
  // Sum or mean all-reduce of the gradient after backward, by axis (empty: the world). Empty list:
  // none.
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
  std::vector<std::vector<std::int64_t>>
      splits;                              // empty: even; all_to_all: a row a rank; others: one row
  std::vector<std::pair<int, int>> pairs;  // send_recv: source, destination, within the group
};

// A call of the user's own code, which each rank makes and which may communicate as it likes. Runs
// on ranks in Python alone.
struct CodeCall {
  std::string code;  // "python:FILE.py:NAME" or "python:MODULE:NAME"
  std::vector<Expression> arguments;
  std::string simulate;  // the same for all ranks at once, named alike: the truth; empty: from
                         // finite differences
};

struct Step {
  std::string name;
  std::string pointer;
  std::variant<Expression, CollectiveCall, CodeCall> what;

  const CollectiveCall* collective() const { return std::get_if<CollectiveCall>(&what); }
  const CodeCall* code() const { return std::get_if<CodeCall>(&what); }
  // Whether the ranks tell its value: of a collective and of a call, in which they may have
  // communicated.
  bool is_reported() const { return !std::holds_alternative<Expression>(what); }
};

bool has_code(const std::vector<Step>&);
// Whether some call says nothing of what it means for all ranks at once: then only the ranks
// themselves can tell.
bool needs_differences(const std::vector<Step>&);

// The text of every expression of a step, for what looks for names in them.
std::string texts_of(const Step&);

// The program as it would be on one device: names as in steps, inputs whole.
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
  // The file's own truth: numbers by rank for local inputs, else the full tensor; or a closed form.
  // One Array is the full tensor; one of shape [] ("nan", "inf", "-inf") stands for every element
  // of every rank.
  struct Truth {
    std::string input;
    std::string pointer;
    std::variant<Array, std::vector<Array>, Expression> value;
  };
  std::vector<Truth> truth;

  const Group* group_named(const std::string& name) const;
  // The group's lists of ranks; of "" one, the world.
  std::vector<std::vector<int>> partition_of(const std::string& group) const;
  std::vector<const Group*> mesh() const;  // the groups that are mesh axes, in order
};

}  // namespace distgrad
