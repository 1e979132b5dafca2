#include "report/durations.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "report/words.h"

namespace distgrad {

std::string durations_text(const Report& report, std::size_t count) {
  std::vector<const CaseResult*> cases;
  for (const CaseResult& r : report.cases)
    if (r.elapsed_s > 0) cases.push_back(&r);
  std::stable_sort(cases.begin(), cases.end(), [](const CaseResult* a, const CaseResult* b) {
    return a->elapsed_s > b->elapsed_s;
  });
  cases.resize(std::min(count, cases.size()));
  if (cases.empty()) return {};
  std::string out = cases.size() == 1 ? "The slowest case:\n"
                                      : fmt::format("The {} slowest cases:\n", cases.size());
  for (const CaseResult* r : cases)
    out += fmt::format("  {}  {}\n", padded_left(seconds_text(r->elapsed_s), 9),
                       on_one_line(r->which.id));
  return out;
}

}  // namespace distgrad
