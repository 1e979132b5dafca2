// How a rank's process and rank 0's, connected, prove to each other that they know the job's
// secret, without telling it.
//
//   rank 0: (waits)                     rank: hello, a random number
//   rank 0: proof of it, another one    rank: checks; proof, and who it is
//   rank 0: checks; welcome, or why not
#pragma once

#include <optional>
#include <string>

#include "launched/world.h"
#include "protocol/channel.h"

namespace distgrad {

// What a rank says of itself.
struct JoiningRank {
  int rank = 0;
  int size = 1;
  int local_rank = -1;
  int local_size = 0;
  std::string host;     // its name
  std::string version;  // of distgrad
};

JoiningRank joining_rank_of(const LaunchedWorld& world);

// Frames of ranks that are not known yet are short.
inline constexpr FrameLimits kJoiningLimits = {4096, 0};

// Rank 0's side of one connection. Passive: receive() is called when there is something to read.
class Admission {
 public:
  Admission(UniqueFd socket, const std::string& job, const std::string& secret);

  int fd() const { return channel_.fd(); }

  enum class State { kWaiting, kProven, kRefused };
  State receive();

  // Once proven. welcome() is to be called, or refuse() with why not.
  const JoiningRank& who() const { return who_; }
  Channel welcome();
  void refuse(const std::string& why);

 private:
  bool take(const std::string& header);
  void say(const std::string& header);

  Channel channel_;
  std::string job_, secret_, theirs_, ours_;
  JoiningRank who_;
};

// A rank's side, from the connection to the welcome.
struct Welcome {
  std::optional<Channel>
      channel;  // none: it is not rank 0 of this job, or it refused, with the reason
  std::string refused;
};
Welcome ask_for_admission(UniqueFd socket, const JoiningRank& who, const std::string& job,
                          const std::string& secret, int timeout_ms);

}  // namespace distgrad
