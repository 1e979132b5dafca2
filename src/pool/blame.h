// Decides which error explains a case that some rank did not get through, and words it. All
// functions map values to values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/run_result.h"
#include "protocol/board.h"
#include "protocol/noted_call.h"

namespace distgrad {

// Says where a rank is in a case.
struct RankPlace {
  enum class State { kNotBegun, kRunning, kFinished };
  int rank = 0;  // -1: a simulator
  State state = State::kNotBegun;
  int step = -1;  // as on the board
  Phase phase = Phase::kIdle;
  std::optional<NotedCall> call = {};  // the call that its code is in, if it notes calls
  // Says what was seen of a rank that does not get on: "loss.py:41 in f: time.sleep(1000), asleep".
  std::string seen_at = {};
};

// Returns "step y (all_reduce), forward", "the loss, backward", "the all-reduce of gradients
// (sync)", ...
std::string place_text(const Program&, const RankPlace&);

// Explains a case that took longer than its time: by what the ranks' notes show (stalled.h), else
// as a desync if ranks wait in different collectives, else as a hang.
RankError hang_error(const Program&, std::span<const RankPlace> places, double timeout_s);

// Returns true if most ranks have yet to connect to the others, and the rest at most wait for them
// in a collective.
bool most_still_connect(const Program&, std::span<const RankPlace>);

// Explains a rank that died. `output` is what it wrote during the case.
RankError crash_error(const Program&, const RankPlace&, const std::string& how,
                      const std::string& output);

// Returns true if the error only says that another rank is gone.
bool is_echo(const RankError&);

// Returns the error that explains the others. `errors` are of one case's ranks, in the order in
// which they arrived, and not empty. If several ranks raised by themselves, it is the lowest
// rank's, so that a case is reported in the same words each time. If several died, it is the
// first's, as the others may have died of it.
const RankError& first_cause(std::span<const RankError> errors);

// Returns true if the case deserves a second run on fresh ranks before it is blamed: a case before
// it on the same ranks may have caused the error (corrupted memory, a collective left unfinished).
// An exception that the subject raised is the case's own.
bool may_be_inherited(const RankError&);

}  // namespace distgrad
