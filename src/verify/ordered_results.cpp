#include "verify/ordered_results.h"

#include <utility>

namespace distgrad {

void OrderedResults::finish(std::size_t i, std::optional<CaseResult> result) {
  if (result && is_wrong(*result)) ++failed_;
  ++finished_;
  waiting_.emplace(i, std::move(result));
  while (!is_over_ && !waiting_.empty() && waiting_.begin()->first == next_) hand_on_first();
}

void OrderedResults::hand_on_rest() {
  while (!is_over_ && !waiting_.empty()) hand_on_first();
}

void OrderedResults::hand_on_first() {
  auto first = waiting_.extract(waiting_.begin());
  next_ = first.key() + 1;
  std::optional<CaseResult>& result = first.mapped();
  if (!result) return;
  is_over_ = fail_fast_ && is_wrong(*result);
  listener_.on_result(*std::move(result));
}

}  // namespace distgrad
