// Hands results on in the order of the cases, whatever order they finish in.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "model/report.h"
#include "verify/verify.h"

namespace distgrad {

class OrderedResults {
 public:
  // With `fail_fast` it hands nothing on after the first case that is broken or not as expected.
  OrderedResults(bool fail_fast, VerifyListener& listener)
      : fail_fast_(fail_fast), listener_(listener) {}

  // A missing result means that the case was invalid, which the listener knows already.
  void finish(std::size_t i, std::optional<CaseResult> result);

  // Hands on what finished out of order, if the run ends before what comes first.
  void hand_on_rest();

  bool is_over() const { return is_over_; }  // by fail_fast
  void report_progress() { listener_.on_progress(finished_, failed_); }

 private:
  void hand_on_first();

  std::size_t next_ = 0;  // after the last that was handed on
  // These are finished and wait for what comes before them.
  std::map<std::size_t, std::optional<CaseResult>> waiting_;
  std::size_t finished_ = 0;
  std::size_t failed_ = 0;
  bool fail_fast_;
  bool is_over_ = false;
  VerifyListener& listener_;
};

}  // namespace distgrad
