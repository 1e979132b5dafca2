#include "protocol/channel.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/failed_call.h"

namespace distgrad {
namespace {

constexpr std::size_t kPieces = 64;  // frames sent by one system call
constexpr std::size_t kReceiveBytes = 1 << 16;
constexpr std::size_t kReceiveFds = 253;  // the kernel's limit for one message

union ReceiveControl {
  char bytes[CMSG_SPACE(kReceiveFds * sizeof(int))];
  cmsghdr align;
};

void attach(msghdr& message, ReceiveControl& control,
            const std::vector<std::shared_ptr<const UniqueFd>>& fds) {
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  int* at = reinterpret_cast<int*>(CMSG_DATA(header));
  for (const auto& fd : fds) *at++ = fd->get();
}

void take_fds(msghdr& message, FrameParser& parser) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      parser.add_fd(UniqueFd(fd));
    }
  }
}

}  // namespace

void Channel::queue(SharedFrame frame) {
  queued_bytes_ += frame->bytes.size();
  queued_.push_back(std::move(frame));
}

Channel::Sent Channel::flush(Wait wait) {
  while (!queued_.empty()) {
    // Sends as many frames as fit. A frame with descriptors begins a message, since they travel
    // with the message's first byte.
    std::array<iovec, kPieces> pieces;
    std::size_t count = 0;
    for (const SharedFrame& frame : queued_) {
      if (count == kPieces || (count > 0 && !frame->fds.empty())) break;
      const std::size_t skip = count == 0 ? sent_of_first_ : 0;
      pieces[count++] = {const_cast<char*>(frame->bytes.data()) + skip, frame->bytes.size() - skip};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    ReceiveControl control{};
    if (sent_of_first_ == 0 && !queued_.front()->fds.empty())
      attach(message, control, queued_.front()->fds);

    const ssize_t sent =
        sendmsg(socket_.get(), &message, MSG_NOSIGNAL | (wait == Wait::kNo ? MSG_DONTWAIT : 0));
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::kPart;
      if (error_ == 0) error_ = errno;
      return Sent::kClosed;
    }
    queued_bytes_ -= static_cast<std::size_t>(sent);
    sent_of_first_ += static_cast<std::size_t>(sent);
    while (!queued_.empty() && sent_of_first_ >= queued_.front()->bytes.size()) {
      sent_of_first_ -= queued_.front()->bytes.size();
      queued_.pop_front();
    }
  }
  return Sent::kAll;
}

Channel::Received Channel::receive(Wait wait) {
  const std::span<char> room = parser_.room(kReceiveBytes);
  iovec piece{room.data(), room.size()};
  ReceiveControl control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t n = 0;
  do {
    n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | (wait == Wait::kNo ? MSG_DONTWAIT : 0));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kNothing;
  if (n < 0 && error_ == 0) error_ = errno;
  if (n <= 0) return Received::kClosed;
  take_fds(message, parser_);
  parser_.commit(static_cast<std::size_t>(n));
  return Received::kSome;
}

std::pair<UniqueFd, UniqueFd> make_socket_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw failed_call("socketpair");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace distgrad
