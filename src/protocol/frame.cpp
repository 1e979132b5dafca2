#include "protocol/frame.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/memory_file.h"

namespace distgrad {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

// Writes instead of mapping: a page that is only written to costs two thirds of one that is mapped
// for it, and this process never holds it.
std::shared_ptr<const UniqueFd> shared_payload(std::span<const std::span<const double>> payload) {
  auto fd = std::make_shared<UniqueFd>(create_memory_file("distgrad-payload"));
  std::vector<iovec> left;
  for (const auto piece : payload)
    if (!piece.empty())
      left.push_back({const_cast<double*>(piece.data()), piece.size_bytes()});  // it only reads
  for (auto next = left.begin(); next != left.end();) {
    const auto count = std::min<std::ptrdiff_t>(left.end() - next, IOV_MAX);
    ssize_t written = writev(fd->get(), &*next, static_cast<int>(count));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("no memory for tensor data");
    for (; written > 0 && static_cast<std::size_t>(written) >= next->iov_len; ++next)
      written -= static_cast<ssize_t>(next->iov_len);
    if (written == 0) continue;
    next->iov_base = static_cast<char*>(next->iov_base) + written;
    next->iov_len -= static_cast<std::size_t>(written);
  }
  seal(fd->get());
  return fd;
}

}  // namespace

SharedFrame make_frame(std::string_view header, std::span<const std::span<const double>> payload,
                       std::vector<std::shared_ptr<const UniqueFd>> fds) {
  auto frame = std::make_shared<OutgoingFrame>();
  FramePrefix prefix;
  prefix.header_bytes = static_cast<std::uint32_t>(header.size());
  for (const auto piece : payload) prefix.payload_bytes += piece.size_bytes();
  const bool share = prefix.payload_bytes >= kShareFromBytes;
  if (header.size() > kMaxHeaderBytes) throw SystemError("a message is too long to be sent");
  if (share) {
    prefix.flags |= kFrameShared;
    frame->fds.push_back(shared_payload(payload));
    frame->shared_bytes = prefix.payload_bytes;
  }
  for (auto& fd : fds) frame->fds.push_back(std::move(fd));
  prefix.fd_count = static_cast<std::uint32_t>(frame->fds.size());

  frame->bytes.reserve(sizeof prefix + header.size() + (share ? 0 : prefix.payload_bytes));
  frame->bytes.append(reinterpret_cast<const char*>(&prefix), sizeof prefix).append(header);
  if (!share)
    for (const auto piece : payload)
      frame->bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size_bytes());
  return frame;
}

SharedFrame make_inline_frame(std::string_view header, std::span<const double> payload) {
  if (header.size() > std::numeric_limits<std::uint32_t>::max())
    throw SystemError("a message is too long to be sent");
  auto frame = std::make_shared<OutgoingFrame>();
  FramePrefix prefix;
  prefix.header_bytes = static_cast<std::uint32_t>(header.size());
  prefix.payload_bytes = payload.size_bytes();
  frame->bytes.reserve(sizeof prefix + header.size() + payload.size_bytes());
  frame->bytes.append(reinterpret_cast<const char*>(&prefix), sizeof prefix).append(header);
  if (!payload.empty())
    frame->bytes.append(reinterpret_cast<const char*>(payload.data()), payload.size_bytes());
  return frame;
}

std::span<char> FrameParser::room(std::size_t size) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - end_ < size && begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < size) buffer_.resize(std::max(end_ + size, buffer_.size() * 2));
  return {buffer_.data() + end_, size};
}

NextFrame FrameParser::fail(std::string reason) {
  failure_ = std::move(reason);
  return BadFrame{failure_};
}

NextFrame FrameParser::next() {
  if (!failure_.empty()) return BadFrame{failure_};
  FramePrefix prefix;
  if (end_ - begin_ < sizeof prefix) return NoFrameYet{};
  std::memcpy(&prefix, buffer_.data() + begin_, sizeof prefix);
  const bool shared = prefix.flags & kFrameShared;
  if (prefix.magic != kFrameMagic) return fail("a frame does not begin with DGF1");
  if (prefix.flags & ~kFrameShared) return fail("a frame has unknown flags");
  if (prefix.header_bytes > limits_.header_bytes) return fail("a frame's header is too long");
  if (prefix.payload_bytes % sizeof(double) != 0)
    return fail("a frame's tensor data is not a multiple of 8 bytes");
  if (!shared && prefix.payload_bytes > limits_.inline_bytes)
    return fail("a frame's tensor data is too long to be inline");
  if (shared && prefix.payload_bytes == 0) return fail("a frame shares no data");
  if (prefix.fd_count > kMaxFrameFds || (shared && prefix.fd_count == 0))
    return fail("a frame has a wrong number of descriptors");

  const std::size_t inline_bytes = shared ? 0 : static_cast<std::size_t>(prefix.payload_bytes);
  if (end_ - begin_ < sizeof prefix + prefix.header_bytes + inline_bytes) return NoFrameYet{};
  if (fds_.size() < prefix.fd_count) return fail("a frame's descriptors did not come with it");

  Frame frame;
  const char* at = buffer_.data() + begin_ + sizeof prefix;
  frame.header.assign(at, prefix.header_bytes);
  if (inline_bytes > 0) {
    auto values = std::make_shared<std::vector<double>>(inline_bytes / sizeof(double));
    std::memcpy(values->data(), at + prefix.header_bytes, inline_bytes);
    frame.payload = *values;
    frame.keeper = std::move(values);
  }
  for (std::uint32_t i = 0; i < prefix.fd_count; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  if (shared) {
    std::string error;
    MappedMemory memory = map_sealed(frame.fds[0].get(), prefix.payload_bytes, &error);
    if (!memory) return fail(error);
    frame.payload = {reinterpret_cast<const double*>(memory.get()),
                     prefix.payload_bytes / sizeof(double)};
    frame.keeper = std::move(memory);
    frame.payload_fd = std::make_shared<const UniqueFd>(std::move(frame.fds[0]));
    frame.fds.erase(frame.fds.begin());
  }
  begin_ += sizeof prefix + prefix.header_bytes + inline_bytes;
  return frame;
}

}  // namespace distgrad
