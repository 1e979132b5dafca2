// Makes a scenario as simple as it can be while it still shows something: what delta debugging does
// for programs. Knows nothing of what is shown; a predicate says.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distgrad {

// For each document of a batch, whether it still shows what is to be shown. The documents are valid
// for the parser; one that torch refuses simply does not show it. Asked in batches so that they can
// run at the same time; must answer the same whenever it is asked the same.
using StillShows = std::function<std::vector<bool>(const std::vector<nlohmann::ordered_json>&)>;

struct ShrinkProgress {
  std::size_t tried = 0;  // documents that the predicate was asked about
  std::size_t kept = 0;   // reductions that were
  std::string last;       // the last reduction that was kept: "step y dropped"
};

struct ShrinkOptions {
  std::size_t most_tried = 5000;  // documents that the predicate is asked about, the budget
  std::size_t batch = 16;         // documents asked about at a time
  std::function<void(const ShrinkProgress&)> on_progress = {};  // after each batch
  std::function<bool()> is_interrupted = {};  // then what is simplest so far is returned
};

struct Shrunk {
  nlohmann::ordered_json document;
  std::vector<std::string> reductions;  // those kept, in order: "4 ranks -> 2"
  std::size_t tried = 0;
  // 1-minimal: no single reduction of the list (docs/repro.md) keeps what is shown. False where the
  // budget was spent or the search interrupted.
  bool is_minimal = false;
};

// `scenario` is valid for the parser and shows it; that is not asked again. A scenario of several
// cases is reduced to one that need not be any of them. Deterministic.
Shrunk shrink(nlohmann::ordered_json scenario, const StillShows&, const ShrinkOptions& = {});

// Every document that is simpler by one reduction, and valid.
std::vector<nlohmann::ordered_json> simpler_documents(const nlohmann::ordered_json& scenario);

}  // namespace distgrad
