// A scenario file, parsed and checked, and the cases it stands for.
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
  FindingName finding;     // none: any
  std::string collective;  // empty: any
  std::string message;     // substring of the error's or the skip's text
  // input -> gradients by rank, as observed (observed.by_rank)
  std::vector<std::pair<std::string, std::vector<std::optional<Array>>>> gradients;
  std::optional<When> when;
};

struct ExpectedSubject {
  std::string subject;
  std::vector<Expectation> expectations;  // the first whose `when` applies counts; none: match
};

struct MeshAxis {
  std::string name;
  int size = 1;
};

// A group as the file has it: listed, or by rule (resolved for a world size).
struct GroupSpec {
  std::string name;
  std::string pointer;
  std::vector<std::vector<int>> listed;
  int size = 0;    // consecutive blocks
  int stride = 0;  // ranks equal modulo stride together
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

// One combination of what a scenario varies.
struct Case {
  std::string id;  // path/to/file.json:subject=torch_nn,world_size=3
  const Scenario* scenario = nullptr;
  std::string subject;
  std::string backend;
  int world_size = 1;
  DType dtype = DType::kFloat64;
  Objective objective;
  bool objective_overridden = false;   // then truth and expectations do not apply
  bool world_size_overridden = false;  // then figures pinned for another world size are not checked
  std::string skip_reason;             // an override makes the case impossible: why; else empty
  double timeout_s = 30;
  Expectation expected;            // the one that applies
  std::string device = "cpu";      // or "cuda": where its tensors are
  std::string python;              // the interpreter asked for; empty: the default one
  std::vector<std::string> notes;  // what of the file an override leaves out, a line each
};

// Whether its ranks' losses are divided by the size where the objective is replicated: those of the
// subject `reference`, unless the program calls code of the user's, who starts his backward with 1.
inline bool divides_replicated(const Case& which, const Program& program) {
  return is_reference(which.subject) && !has_code(program.steps);
}

}  // namespace distgrad
