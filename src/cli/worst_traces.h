// Keeps the traces of values and cotangents through the worst cases that went wrong. Each costs
// simulations, and a report can draw only so many.
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

  WorstTraces();  // works them out as `distgrad explain` does
  explicit WorstTraces(WorkOut work_out) : work_out_(std::move(work_out)) {}  // for tests

  // Works out the trace if the case is among the worst so far. Mismatches come first. Of errors,
  // whose trace is only the simulation's, and of expected mismatches it takes only the first few,
  // and of programs with more than 2^20 elements none.
  void consider(const Conclusion&);

  std::map<std::string, ValueTrace> by_case() const { return traces_; }

 private:
  // Says how bad a case is, with its negated number, so that the first of equal ones counts as
  // worse.
  using Rank = std::tuple<int, double, long>;

  bool wants(const Rank&, const CaseResult&);

  WorkOut work_out_;
  std::map<std::string, ValueTrace> traces_;  // by the case's name
  std::set<std::pair<Rank, std::string>> wrong_;
  long considered_ = 0;
  int worked_out_ = 0;  // includes those that worse ones have pushed out
  int others_ = 0;      // expected ones and errors
};

}  // namespace distgrad
