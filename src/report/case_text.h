// One case as people read it: its line, and below it what happened where something is wrong.
#pragma once

#include <functional>
#include <string>

#include "model/report.h"

namespace distgrad {

struct TextOptions {
  bool color = false;
  bool align = false;    // pad the cases' names to one width: for terminals; plain text stays the
                         // same when a case is added
  bool quiet = false;    // failures and the summary only
  bool verbose = false;  // every case in full: tables, bounds, composed collectives, notes, timing
  bool full = false;     // every rank and element
  bool simulated = false;  // no ranks ran: the truth is what is reported
  std::size_t width = 100;
  std::function<std::string(const Case&, int rank)> host_of =
      {};  // of a case's rank, where they are on several; empty: on one
  std::string again =
      "distgrad run";            // what the line "Again:" starts with; options that matter included
  bool again_names_case = true;  // else `again` is whole: nothing runs one case alone
};

// "ok", "FAIL", "ERR", "skip" or "disp", padded to one width.
std::string status_text(const CaseResult&, bool color);

// "mismatch: own-slice in step zs (all_gather)"; ", as expected" after the verdict where that is
// worth saying. A line, but its words may come from a rank and hold anything else.
std::string outcome_text(const CaseResult&);

// What stands behind the status: a case's or a file's name, and what came of it.
std::string named_outcome(const std::string& name, std::size_t name_width,
                          const std::string& outcome, const TextOptions&);

// What its ranks' code warned of, the same words from several ranks once.
std::string warnings_text(const CaseResult&, const TextOptions&);

// One case: its line, and the detail where it calls for it.
std::string case_text(const CaseResult&, const TextOptions&, std::size_t id_width = 0);

}  // namespace distgrad
