// Makes a scenario as simple as possible while it still shows something, as delta debugging does
// for programs. A predicate decides what it shows.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distgrad {

// Says for each document of a batch whether it still shows the thing. The parser accepts the
// documents; one that torch refuses simply does not show it. Batches let them run at the same time.
// Must always answer the same.
using StillShows = std::function<std::vector<bool>(const std::vector<nlohmann::ordered_json>&)>;

struct ShrinkProgress {
  std::size_t tried = 0;  // documents given to the predicate
  std::size_t kept = 0;   // reductions that were kept
  std::string last;       // the last one kept: "step y dropped"
};

struct ShrinkOptions {
  std::size_t most_tried = 5000;  // the budget of documents for the predicate
  std::size_t batch = 16;         // documents asked about at a time
  std::function<void(const ShrinkProgress&)> on_progress = {};  // after each batch
  std::function<bool()> is_interrupted = {};  // then it returns the simplest so far
};

struct Shrunk {
  nlohmann::ordered_json document;
  std::vector<std::string> reductions;  // those kept, in order: "4 ranks -> 2"
  std::size_t tried = 0;
  // Means 1-minimal: no single reduction of the list (docs/repro.md) keeps what is shown. False if
  // the budget was spent or the search interrupted.
  bool is_minimal = false;
};

// The parser must accept `scenario`, which must show the thing; that is not asked again. A scenario
// of several cases becomes one that need not be any of them. Deterministic.
Shrunk shrink(nlohmann::ordered_json scenario, const StillShows&, const ShrinkOptions& = {});

// Returns every valid document that is simpler by one reduction.
std::vector<nlohmann::ordered_json> simpler_documents(const nlohmann::ordered_json& scenario);

}  // namespace distgrad
