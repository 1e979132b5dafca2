#include "fuzz/shrink.h"

#include <algorithm>
#include <optional>
#include <set>

#include "fuzz/reductions.h"
#include "fuzz/weight.h"

namespace distgrad {

Reductions reductions_of(const Document& document) {
  Reductions all;
  for (const auto reduce :
       {reduce_ranks, reduce_steps, reduce_inputs, reduce_options, reduce_expressions})
    reduce(document, all);
  const Weight weight = weight_of(document);
  std::erase_if(all, [&](const Reduction& r) { return weight_of(r.document) >= weight; });
  return all;
}

std::vector<Document> simpler_documents(const Document& scenario) {
  std::vector<Document> documents;
  for (Reduction& reduction : reductions_of(scenario))
    if (is_valid(reduction.document)) documents.push_back(std::move(reduction.document));
  return documents;
}

namespace {

class Search {
 public:
  Search(Document scenario, const StillShows& still_shows, const ShrinkOptions& options)
      : still_shows_(still_shows), options_(options) {
    result_.document = std::move(scenario);
  }

  // Goes through the list of reductions repeatedly, each time from the last one kept, until a whole
  // pass keeps none.
  Shrunk run() {
    while (pass()) {
    }
    return std::move(result_);
  }

 private:
  // Returns true if there may be more to reduce.
  bool pass() {
    bool kept = false;
    Reductions all = reductions_of(result_.document);
    for (std::size_t at = 0; at < all.size();) {
      const std::optional<std::size_t> found = first_that_shows(all, at);
      if (found) {
        kept = true;
        result_.reductions.push_back(all[*found].what);
        result_.document = std::move(all[*found].document);
      }
      if (is_over()) return false;
      if (!found) break;
      at = *found;  // those before it were just refused
      all = reductions_of(result_.document);
    }
    result_.is_minimal = !kept;
    return kept;
  }

  bool is_over() const {
    return result_.tried >= options_.most_tried ||
           (options_.is_interrupted && options_.is_interrupted());
  }

  // Searches the reductions from `at` on, which it moves past those that were refused.
  std::optional<std::size_t> first_that_shows(const Reductions& all, std::size_t& at) {
    while (at < all.size() && !is_over()) {
      std::vector<Document> batch;
      std::vector<std::size_t> places;
      for (; at < all.size() && batch.size() < options_.batch; ++at)
        if (is_worth_asking(all[at].document)) {
          batch.push_back(all[at].document);
          places.push_back(at);
        }
      if (batch.empty()) break;
      result_.tried += batch.size();
      const std::vector<bool> shows = still_shows_(batch);
      for (std::size_t i = 0; i < batch.size(); ++i)
        if (!shows.at(i)) refused_.insert(batch[i].dump());
      const auto first = std::find(shows.begin(), shows.end(), true);
      tell(first == shows.end() ? "" : all[places[first - shows.begin()]].what);
      if (first != shows.end()) return places[first - shows.begin()];
    }
    return std::nullopt;
  }

  // Returns true if it is valid and was not refused before.
  bool is_worth_asking(const Document& document) const {
    return !refused_.contains(document.dump()) && is_valid(document);
  }

  void tell(const std::string& kept) {
    if (!kept.empty()) last_ = kept;
    if (options_.on_progress)
      options_.on_progress(
          {result_.tried, result_.reductions.size() + (kept.empty() ? 0 : 1), last_});
  }

  const StillShows& still_shows_;
  const ShrinkOptions& options_;
  std::set<std::string> refused_;
  std::string last_;
  Shrunk result_;
};

}  // namespace

Shrunk shrink(Document scenario, const StillShows& still_shows, const ShrinkOptions& options) {
  return Search(std::move(scenario), still_shows, options).run();
}

}  // namespace distgrad
