// Sends and receives frames over one end of a stream socket pair or, without descriptors, of a
// connection. It is passive: nothing happens between calls. Not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "protocol/frame.h"

namespace distgrad {

enum class Wait { kNo, kYes };

class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  void set_limits(FrameLimits limits) { parser_.set_limits(limits); }

  // Only queues; flush() sends.
  void queue(SharedFrame frame);
  bool has_queued() const { return !queued_.empty(); }
  std::size_t queued_bytes() const { return queued_bytes_; }

  enum class Sent { kAll, kPart, kClosed };
  Sent flush(Wait wait);

  // Reads once what is there; next() then returns the frames.
  enum class Received { kSome, kNothing, kClosed };
  Received receive(Wait wait);
  NextFrame next() { return parser_.next(); }
  int error() const {
    return error_;
  }  // why it is closed, an errno; 0: the other side has ended it

 private:
  UniqueFd socket_;
  std::deque<SharedFrame> queued_;
  std::size_t sent_of_first_ = 0;  // bytes
  std::size_t queued_bytes_ = 0;
  FrameParser parser_;
  int error_ = 0;
};

// Returns sockets that are both closed on exec. Throws SystemError.
std::pair<UniqueFd, UniqueFd> make_socket_pair();

}  // namespace distgrad
