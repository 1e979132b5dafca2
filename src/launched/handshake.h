// Lets a rank's process and rank 0's, once connected, prove to each other that they know the job's
// secret, without telling it.
//
//   rank 0 waits                                     the rank sends hello and a random number
//   rank 0 proves itself with it, sends another      the rank checks, proves itself, says who it is
//   rank 0 checks, and welcomes it or says why not
#pragma once

#include <optional>
#include <string>

#include "launched/world.h"
#include "protocol/channel.h"

namespace distgrad {

// Holds what a rank says of itself.
struct JoiningRank {
  int rank = 0;
  int size = 1;
  int local_rank = -1;
  int local_size = 0;
  std::string host;     // the host's name
  std::string version;  // distgrad's version
};

JoiningRank joining_rank_of(const LaunchedWorld& world);

// Limits the frames of ranks that are not known yet to a few bytes.
inline constexpr FrameLimits kJoiningLimits = {4096, 0};

// Does rank 0's side of one connection, and is passive: call receive() when there is data to read.
class Admission {
 public:
  Admission(UniqueFd socket, const std::string& job, const std::string& secret);

  int fd() const { return channel_.fd(); }

  enum class State { kWaiting, kProven, kRefused };
  State receive();

  // May be called once proven. Then call welcome(), or refuse() with the reason.
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

// Says how a rank's request to join ended.
struct Welcome {
  std::optional<Channel>
      channel;  // empty where the other is not rank 0 of this job, or refused with the reason below
  std::string refused;
};
Welcome ask_for_admission(UniqueFd socket, const JoiningRank& who, const std::string& job,
                          const std::string& secret, int timeout_ms);

}  // namespace distgrad
