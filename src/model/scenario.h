// Holds a scenario file, parsed and checked, and the cases that it stands for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/findings.h"
#include "model/objective.h"
#include "model/program.h"
#include "model/subject_text.h"
#include "model/verdict.h"

namespace distgrad {

struct SourcePosition {
  int line = 0;    // from 1; 0: unknown
  int column = 0;  // from 1, in bytes
};

struct Tolerance {
  enum class Kind { kDerived, kEqual, kExplicit };
  Kind kind = Kind::kDerived;
  double rtol = 0;
  double atol = 0;
};

struct When {
  std::optional<int> world_size;
  std::optional<DType> dtype;
  std::string backend;
  std::string torch;                         // ">=2.13"
  std::map<std::string, std::string> other;  // reserved: objective, device, python
};

struct Expectation {
  Verdict verdict = Verdict::kMatch;
  FindingName finding;     // none means any
  std::string collective;  // empty means any
  std::string message;     // substring of the error's or the skip's text
  // Pairs an input with its gradients by rank, as observed (observed.by_rank).
  std::vector<std::pair<std::string, std::vector<std::optional<Array>>>> gradients;
  std::optional<When> when;
};

struct ExpectedSubject {
  std::string subject;
  std::vector<Expectation> expectations;  // the first whose `when` applies counts; without one,
                                          // match
};

struct MeshAxis {
  std::string name;
  int size = 1;
};

// Describes a group as the file does: listed, or by a rule that each world size resolves.
struct GroupSpec {
  std::string name;
  std::string pointer;
  std::vector<std::vector<int>> listed;
  int size = 0;    // consecutive blocks
  int stride = 0;  // ranks that are equal modulo stride form a list
};

struct Scenario {
  std::string file;  // as given on the command line
  std::string name;
  std::string note;
  std::vector<int> world_sizes;
  std::vector<MeshAxis> mesh;
  std::vector<GroupSpec> groups;
  std::vector<DType> dtypes;
  std::vector<std::string> backends;
  std::vector<Input> inputs;
  std::vector<Step> steps;
  Expression loss;
  Objective objective;
  Tolerance tolerance;
  std::vector<Program::Truth> truth;
  std::optional<SingleDevice> single_device;
  std::vector<ExpectedSubject> subjects;
  double timeout_s = 30;

  std::map<std::string, SourcePosition> positions;  // JSON pointer -> place in the file
};

// Describes one combination of what a scenario varies.
struct Case {
  std::string id;  // path/to/file.json:subject=torch_nn,world_size=3
  const Scenario* scenario = nullptr;
  std::string subject;
  std::string backend;
  int world_size = 1;
  DType dtype = DType::kFloat64;
  Objective objective;
  bool objective_overridden = false;   // if so, truth and expectations do not apply
  bool world_size_overridden = false;  // if so, figures pinned for another world size are not
                                       // checked
  std::string skip_reason;             // why an override makes the case impossible, else empty
  double timeout_s = 30;
  Expectation expected;            // the one that applies
  std::string device = "cpu";      // where its tensors are; or "cuda"
  std::string python;              // the interpreter asked for; empty: the default one
  std::vector<std::string> notes;  // what an override leaves out of the file, a line each
};

// Returns true if the ranks' losses are divided by the size under `replicated`. The subject
// `reference` does so, unless the program calls user code, whose backward starts with 1.
inline bool divides_replicated(const Case& which, const Program& program) {
  return is_reference(which.subject) && !has_code(program.steps);
}

}  // namespace distgrad
