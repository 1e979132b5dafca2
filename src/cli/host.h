// What loading cases asks of this machine: its Python interpreters and its GPUs, each looked at
// once and only where a case needs it.
#pragma once

#include "cli/accelerators.h"
#include "scenario/case_id.h"
#include "verify/interpreters.h"

namespace distgrad {

class Host {
 public:
  // `share_gpu`: several ranks may run on one GPU; processes that are started from here on hear of
  // it, too.
  explicit Host(bool share_gpu = false);

  // From now on the overrides ask this host, which must outlive them, for the torch of an
  // interpreter.
  void answer_for_interpreters(Overrides& overrides);
  // The same for what a backend or device lacks here.
  void answer_for_accelerators(Overrides& overrides);

  Interpreters& interpreters() { return interpreters_; }

 private:
  Interpreters interpreters_;
  Accelerators accelerators_;
};

}  // namespace distgrad
