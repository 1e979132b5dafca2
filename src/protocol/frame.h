// Holds the unit of the rank protocol: a JSON header, float64 tensor data, and file descriptors.
// docs/protocol.md has the layout. Nothing from the other side is trusted: an invalid frame is an
// error value, and nothing is allocated for bytes that have not arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/unique_fd.h"

namespace distgrad {

inline constexpr std::uint32_t kFrameMagic =
    0x31464744;  // "DGF1" in the file order of little-endian bytes
// Flags that the tensor data is in the frame's first descriptor.
inline constexpr std::uint32_t kFrameShared = 1;
inline constexpr std::size_t kMaxHeaderBytes = 64 << 20;
// Limits tensor data that does not come in shared memory.
inline constexpr std::size_t kMaxInlineBytes = 64 << 20;
inline constexpr std::size_t kMaxFrameFds = 16;
// Gives the size from which this implementation shares instead of copying.
inline constexpr std::size_t kShareFromBytes = 1 << 20;

// Comes before the header, in little-endian.
struct FramePrefix {
  std::uint32_t magic = kFrameMagic;
  std::uint32_t flags = 0;
  std::uint32_t header_bytes = 0;
  std::uint32_t fd_count = 0;
  std::uint64_t payload_bytes = 0;  // a multiple of 8
};
static_assert(sizeof(FramePrefix) == 24);

// Holds a frame ready to be sent, to any number of receivers.
struct OutgoingFrame {
  std::string bytes;
  std::vector<std::shared_ptr<const UniqueFd>> fds;
  std::size_t weight() const { return bytes.size() + shared_bytes; }
  std::size_t shared_bytes = 0;
};
using SharedFrame = std::shared_ptr<const OutgoingFrame>;

// Makes a frame. `payload` comes in pieces, as the arrays lie in memory. Throws SystemError if
// shared memory cannot be had.
SharedFrame make_frame(std::string_view header, std::span<const std::span<const double>> payload,
                       std::vector<std::shared_ptr<const UniqueFd>> fds = {});

// Does the same with all tensor data after the header, however much, for connections that cannot
// share memory.
SharedFrame make_inline_frame(std::string_view header, std::span<const double> payload);

// Holds a received frame.
struct Frame {
  std::string header;
  std::span<const double> payload;
  std::shared_ptr<const void> keeper;          // of the payload
  std::shared_ptr<const UniqueFd> payload_fd;  // if the payload came in shared memory
  std::vector<UniqueFd> fds;                   // without the payload's
};

struct NoFrameYet {};
struct BadFrame {
  std::string reason;
};
using NextFrame = std::variant<NoFrameYet, Frame, BadFrame>;

// Limits what is accepted from the other side.
struct FrameLimits {
  std::size_t header_bytes = kMaxHeaderBytes;
  std::size_t inline_bytes = kMaxInlineBytes;
};

// Cuts a stream of bytes and descriptors into frames. After a BadFrame the stream is lost: every
// further call returns it again.
class FrameParser {
 public:
  // Makes room for `size` more bytes; commit() says how many were filled.
  std::span<char> room(std::size_t size);
  void commit(std::size_t size) { end_ += size; }
  void add_fd(UniqueFd fd) { fds_.push_back(std::move(fd)); }

  void set_limits(FrameLimits limits) { limits_ = limits; }

  NextFrame next();
  bool empty() const { return begin_ == end_; }  // the stream may end here

 private:
  NextFrame fail(std::string reason);

  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::deque<UniqueFd> fds_;
  std::string failure_;
  FrameLimits limits_;
};

}  // namespace distgrad
