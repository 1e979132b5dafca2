#include "verify/ordered_results.h"

#include <utility>

namespace distgrad {
namespace {

bool is_failure(const CaseResult& r) { return r.broken || r.as_expected == false; }

}  // namespace

void OrderedResults::finish(std::size_t i, std::optional<CaseResult> result) {
  if (result && is_failure(*result)) ++failed_;
  ++finished_;
  waiting_.emplace(i, std::move(result));
  while (!is_over_ && !waiting_.empty() && waiting_.begin()->first == next_) hand_on_first();
}

void OrderedResults::hand_on_rest() {
  while (!is_over_ && !waiting_.empty()) hand_on_first();
}

void OrderedResults::hand_on_first() {
  std::optional<CaseResult> result = std::move(waiting_.extract(waiting_.begin()).mapped());
  ++next_;
  if (!result) return;
  is_over_ = fail_fast_ && is_failure(*result);
  listener_.on_result(*std::move(result));
}

}  // namespace distgrad
