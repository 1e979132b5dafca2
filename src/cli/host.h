// Answers what loading cases asks of this machine: its Python interpreters and its GPUs, each
// examined once and only if a case needs it.
#pragma once

#include "cli/accelerators.h"
#include "scenario/case_id.h"
#include "verify/interpreters.h"

namespace distgrad {

class Host {
 public:
  // `share_gpu` lets several ranks run on one GPU; processes started later see it, too.
  explicit Host(bool share_gpu = false);

  // Makes the overrides ask this host, which must outlive them, what a backend or device lacks.
  void answer_for_accelerators(Overrides& overrides);

  Interpreters& interpreters() { return interpreters_; }

 private:
  Interpreters interpreters_;
  Accelerators accelerators_;
};

}  // namespace distgrad
