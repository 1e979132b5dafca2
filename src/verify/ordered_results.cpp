#include "verify/ordered_results.h"

#include <utility>

namespace distgrad {
namespace {

bool is_failure(const CaseResult& r) { return r.broken || r.as_expected == false; }

}  // namespace

void OrderedResults::finish(std::size_t i, std::optional<CaseResult> result) {
  if (result && is_failure(*result)) ++failed_;
  ++finished_;
  results_[i] = std::move(result);
  for (; !is_over_ && next_ < results_.size() && results_[next_].has_value(); ++next_) {
    if (!*results_[next_]) continue;
    is_over_ = fail_fast_ && is_failure(**results_[next_]);
    listener_.on_result(std::move(**results_[next_]));
    results_[next_]->reset();
  }
}

void OrderedResults::hand_on_rest() {
  for (; !is_over_ && next_ < results_.size(); ++next_)
    if (results_[next_] && *results_[next_]) listener_.on_result(std::move(**results_[next_]));
}

}  // namespace distgrad
