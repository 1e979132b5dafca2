// Explains one case in full, for people: the program with its values and cotangents by rank beside
// each step, where the ranks part from the truth, and then all that the text report knows.
#pragma once

#include <string>
#include <vector>

#include "report/case_text.h"

namespace distgrad {

// Holds a value that the program names, with what is known of it by rank (N arrays each; empty
// means unknown).
struct ExplainedValue {
  enum class Kind { kInput, kStep, kLoss };
  Kind kind = Kind::kStep;
  std::string title;                   // "y = all_reduce(xx, op=sum)"
  std::vector<Array> value;            // simulated
  std::vector<Array> observed_value;   // the ranks'; empty if equal to the simulated one
  std::vector<Array> cotangent;        // the truth
  std::vector<Array> ranks_cotangent;  // empty if equal to the truth's, or unknown
  std::string mark;                    // what is special here; empty for most
};

struct Explanation {
  std::string note;                    // the file's
  std::string setting;                 // a sentence or two: subject, ranks, dtype, objective
  std::vector<ExplainedValue> values;  // inputs, steps, the loss; empty: the program never ran
  // Says how the ranks' cotangents are known: "observed at every collective".
  std::string how_known;
  std::vector<std::string> remarks;  // on how to read the cotangents, a paragraph each
  std::string parting;               // the first place where observed and true values part
  std::string measured;  // what the wrong backwards were measured to do; empty: none was
};

// Explains the case. `options.full` shows every rank and element; otherwise those of more than 8
// are summarised. Of the other options width, color and `again` count ("distgrad run
// --allow-code").
std::string explain_text(const Explanation&, const CaseResult&, TextOptions options);

}  // namespace distgrad
