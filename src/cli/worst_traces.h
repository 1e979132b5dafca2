// The traces of values and cotangents through the cases that went wrong, the worst of them: each
// costs simulations, and a report can only draw so many.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "report/value_trace.h"
#include "verify/verify.h"

namespace distgrad {

class WorstTraces {
 public:
  using WorkOut = std::function<ValueTrace(const Conclusion&)>;

  WorstTraces();  // worked out as `distgrad explain` does
  explicit WorstTraces(WorkOut work_out) : work_out_(std::move(work_out)) {}  // for tests

  // Works the trace out where the case is among the worst so far. Mismatches come first: of errors,
  // whose trace is the simulation's alone, and of mismatches that are as expected only the first
  // few are taken, and of programs with more than 2^20 elements none.
  void consider(const Conclusion&);

  std::map<std::string, ValueTrace> by_case() const { return traces_; }

 private:
  // How bad it is, and the number of the case, negative: of equal ones the first counts as worse.
  using Rank = std::tuple<int, double, long>;

  bool wants(const Rank&, const CaseResult&);

  WorkOut work_out_;
  std::map<std::string, ValueTrace> traces_;  // by the case's name
  std::set<std::pair<Rank, std::string>> wrong_;
  long considered_ = 0;
  int worked_out_ = 0;  // also those that worse ones have pushed out
  int others_ = 0;      // expected ones and errors
};

}  // namespace distgrad
