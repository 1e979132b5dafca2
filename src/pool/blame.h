// Which error explains a case that some rank did not get through, and in which words. Functions
// from values to values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/run_result.h"
#include "protocol/board.h"
#include "protocol/noted_call.h"

namespace distgrad {

// Where a rank is in a case.
struct RankPlace {
  enum class State { kNotBegun, kRunning, kFinished };
  int rank = 0;  // -1: a simulator
  State state = State::kNotBegun;
  int step = -1;  // as on the board
  Phase phase = Phase::kIdle;
  std::optional<NotedCall> call = {};  // that its code is in, where it notes that
  std::string seen_at =
      {};  // "loss.py:41 in f: time.sleep(1000), asleep": what was seen of who does not get on
};

// "step y (all_reduce), forward", "the loss, backward", "the all-reduce of gradients (sync)", ...
std::string place_text(const Program&, const RankPlace&);

// Of a case that took longer than its time: what the ranks' notes show (stalled.h), else a desync
// where ranks wait in different collectives, else a hang.
RankError hang_error(const Program&, std::span<const RankPlace> places, double timeout_s);

// True where most ranks have yet to connect to the others, and the rest is no further than to wait
// for them in a collective.
bool most_still_connect(const Program&, std::span<const RankPlace>);

// Of a rank that died; `output` is what it wrote during the case.
RankError crash_error(const Program&, const RankPlace&, const std::string& how,
                      const std::string& output);

// Whether the error only tells that another rank is gone.
bool is_echo(const RankError&);

// Of the errors of one case's ranks, not empty, in the order heard of: the one that explains the
// others. Where several ranks raised of themselves it is the lowest rank's, so that a case is
// reported in the same words each time; where several died it is the first's, as the others may
// have died of it.
const RankError& first_cause(std::span<const RankError> errors);

// Whether the case deserves a second run on fresh ranks before it is blamed: the error may be the
// doing of a case that ran before it on the same ranks (corrupted memory, a collective left
// unfinished). What a subject raised is its own.
bool may_be_inherited(const RankError&);

}  // namespace distgrad
