// Writes one case for people: its line, and below it what happened if something is wrong.
#pragma once

#include <functional>
#include <string>

#include "model/report.h"

namespace distgrad {

struct TextOptions {
  bool color = false;
  bool align = false;    // pads the cases' names to one width, for terminals; plain text stays the
                         // same when a case is added
  bool quiet = false;    // prints failures and the summary only
  bool verbose = false;  // prints every case in full: tables, bounds, composed collectives, notes,
                         // timing
  bool full = false;     // prints every rank and element
  bool simulated = false;  // no ranks ran, so the truth is reported
  std::size_t width = 100;
  // Names the host of a case's rank, if the ranks are on several; empty: on one.
  std::function<std::string(const Case&, int rank)> host_of = {};
  // Starts the line "Again:", with the options that matter.
  std::string again = "distgrad run";
  bool again_names_case = true;  // false: `again` is whole, since nothing runs one case alone
};

// Returns "ok", "FAIL", "ERR", "skip" or "disp", padded to one width.
std::string status_text(const CaseResult&, bool color);

// Returns "mismatch: own-slice in step zs (all_gather)", with ", as expected" after the verdict if
// that is worth saying. It is one line, but its words may come from a rank and hold anything else.
std::string outcome_text(const CaseResult&);

// Returns what follows the status: a case's or a file's name, and its outcome.
std::string named_outcome(const std::string& name, std::size_t name_width,
                          const std::string& outcome, const TextOptions&);

// Returns what its ranks' code warned of. The same words from several ranks come once.
std::string warnings_text(const CaseResult&, const TextOptions&);

// Returns one case: its line, and the detail if it calls for that.
std::string case_text(const CaseResult&, const TextOptions&, std::size_t id_width = 0);

}  // namespace distgrad
