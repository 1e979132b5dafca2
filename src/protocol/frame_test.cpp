#include "protocol/frame.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/memory_file.h"
#include "protocol/channel.h"

namespace distgrad {
namespace {

using Pieces = std::vector<std::span<const double>>;

void feed(FrameParser& parser, std::string_view bytes) {
  if (bytes.empty()) return;
  const std::span<char> room = parser.room(bytes.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  parser.commit(bytes.size());
}

std::string failure(FrameParser& parser) {
  NextFrame next = parser.next();
  const auto* bad = std::get_if<BadFrame>(&next);
  return bad ? bad->reason : next.index() == 0 ? "none yet" : "a frame";
}

std::string with_prefix(FramePrefix prefix, const std::string& rest = "") {
  return std::string(reinterpret_cast<const char*>(&prefix), sizeof prefix) + rest;
}

TEST(FrameParser, ByteByByte) {
  const std::vector<double> values = {1.5, -0.0, std::numeric_limits<double>::infinity(),
                                      std::nan("")};
  const SharedFrame frame = make_frame("{}", Pieces{values, {}, values});
  FrameParser parser;
  for (std::size_t i = 0; i < frame->bytes.size(); ++i) {
    EXPECT_EQ(failure(parser), "none yet") << "after " << i << " bytes";
    feed(parser, frame->bytes.substr(i, 1));
  }
  NextFrame next = parser.next();
  const Frame& received = std::get<Frame>(next);
  EXPECT_EQ(received.header, "{}");
  ASSERT_EQ(received.payload.size(), 8U);
  EXPECT_EQ(std::memcmp(received.payload.data() + 4, values.data(), 32), 0);  // bit for bit
  EXPECT_TRUE(parser.empty());
}

TEST(FrameParser, SeveralAtOnce) {
  FrameParser parser;
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += make_frame(std::to_string(i), {})->bytes;
  feed(parser, bytes);
  for (int i = 0; i < 100; ++i) {
    NextFrame next = parser.next();
    EXPECT_EQ(std::get<Frame>(next).header, std::to_string(i));
  }
  EXPECT_EQ(failure(parser), "none yet");
}

TEST(FrameParser, RefusesWhatIsNoFrame) {
  const auto refused = [](FramePrefix prefix) {
    FrameParser parser;
    feed(parser, with_prefix(prefix));
    const std::string first = failure(parser);
    feed(parser, make_frame("{}", {})->bytes);
    EXPECT_EQ(failure(parser), first) << "after an error the stream stays lost";
    return first;
  };
  FramePrefix p;
  p.magic = 1;
  EXPECT_EQ(refused(p), "a frame does not begin with DGF1");
  p = {};
  p.flags = 2;
  EXPECT_EQ(refused(p), "a frame has unknown flags");
  p = {};
  p.header_bytes = 0xffffffff;
  EXPECT_EQ(refused(p), "a frame's header is too long");
  p = {};
  p.payload_bytes = 7;
  EXPECT_EQ(refused(p), "a frame's tensor data is not a multiple of 8 bytes");
  p.payload_bytes = ~std::uint64_t{7};
  EXPECT_EQ(refused(p), "a frame's tensor data is too long to be inline");
  p.flags = kFrameShared;
  EXPECT_EQ(refused(p), "a frame has a wrong number of descriptors");
  p = {};
  p.fd_count = 1000;
  EXPECT_EQ(refused(p), "a frame has a wrong number of descriptors");
  p.fd_count = 1;
  EXPECT_EQ(refused(p), "a frame's descriptors did not come with it");
  p = {};
  p.flags = kFrameShared;
  p.fd_count = 1;
  EXPECT_EQ(refused(p), "a frame shares no data");
}

// Shared memory that could still shrink would kill who reads it.
TEST(FrameParser, RefusesSharedMemoryThatIsNotSafe) {
  const auto refused = [](std::size_t file_bytes, bool sealed) {
    UniqueFd file = create_memory_file("test");
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(file_bytes)), 0);
    if (sealed) seal(file.get());
    FramePrefix p;
    p.flags = kFrameShared;
    p.fd_count = 1;
    p.payload_bytes = 1 << 20;
    FrameParser parser;
    parser.add_fd(std::move(file));
    feed(parser, with_prefix(p));
    return failure(parser);
  };
  EXPECT_EQ(refused(1 << 20, false), "shared memory is not sealed");
  EXPECT_EQ(refused((1 << 20) - 8, true), "shared memory is shorter than announced");
  EXPECT_EQ(refused(1 << 20, true), "a frame");
}

// Whatever bytes come: an error value or a frame, never more (run under ASan).
TEST(FrameParser, SurvivesFlippedBits) {
  const std::vector<double> values(10, 1.0);
  const std::string good = make_frame(R"({"kind":"x"})", Pieces{values})->bytes;
  std::mt19937 random(0);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good + good;
    for (int k = 0; k < 3; ++k)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    FrameParser parser;
    feed(parser, bytes.substr(0, random() % bytes.size()));
    while (std::holds_alternative<Frame>(parser.next())) {
    }
  }
}

TEST(Channel, FramesAndDescriptorsStayTogether) {
  auto [a, b] = make_socket_pair();
  Channel sender(std::move(a)), receiver(std::move(b));
  const std::vector<double> large(1 << 18, 2.5), small(100, 3.5);
  const std::vector<double> inline_data(100'000, 4.5);  // more than a socket holds: sent in parts
  auto file = std::make_shared<const UniqueFd>(create_memory_file("marked"));
  ASSERT_EQ(ftruncate(file->get(), 4711), 0);
  for (int i = 0; i < 20; ++i) {
    sender.queue(make_frame("small", Pieces{small}));
    sender.queue(make_frame("large", Pieces{large}));
    sender.queue(make_frame("file", {}, {file}));
    sender.queue(make_frame("both", Pieces{large}, {file}));
    sender.queue(make_frame("inline and file", Pieces{inline_data}, {file}));
  }
  std::vector<std::string> received;
  while (received.size() < 100) {
    sender.flush(Wait::kNo);
    ASSERT_NE(receiver.receive(Wait::kNo), Channel::Received::kClosed);
    for (NextFrame next = receiver.next(); !std::holds_alternative<NoFrameYet>(next);
         next = receiver.next()) {
      ASSERT_TRUE(std::holds_alternative<Frame>(next)) << std::get<BadFrame>(next).reason;
      const Frame& frame = std::get<Frame>(next);
      received.push_back(frame.header);
      const bool is_large = frame.header == "large" || frame.header == "both";
      if (is_large) {
        EXPECT_EQ(frame.payload.back(), 2.5);
      }
      if (frame.header == "small") {
        EXPECT_EQ(frame.payload.back(), 3.5);
      }
      const bool has_file = frame.header != "small" && frame.header != "large";
      ASSERT_EQ(frame.fds.size(), has_file ? 1U : 0U);
      if (!frame.fds.empty()) {
        EXPECT_EQ(lseek(frame.fds[0].get(), 0, SEEK_END), 4711);
      }
      if (!frame.fds.empty()) {
        EXPECT_TRUE(fcntl(frame.fds[0].get(), F_GETFD) & FD_CLOEXEC);
      }
    }
  }
  EXPECT_FALSE(sender.has_queued());
  EXPECT_EQ(sender.queued_bytes(), 0U);
}

TEST(Channel, LargeDataIsNotCopiedThroughTheSocket) {
  const std::vector<double> large(1 << 18);
  const SharedFrame frame = make_frame("{}", Pieces{large});
  EXPECT_LT(frame->bytes.size(), 100U);
  EXPECT_EQ(frame->fds.size(), 1U);
}

TEST(Channel, SharedDataMayComeInMorePiecesThanOneCallWrites) {
  std::vector<double> values((1 << 17) + 3000);
  std::iota(values.begin(), values.end(), 0);
  Pieces pieces;
  for (std::size_t i = 0; i < 3000; ++i) pieces.push_back(std::span(values).subspan(i, 1));
  pieces.push_back({});
  pieces.push_back(std::span(values).subspan(3000));
  auto [a, b] = make_socket_pair();
  Channel sender(std::move(a)), receiver(std::move(b));
  sender.queue(make_frame("{}", pieces));
  sender.flush(Wait::kYes);
  ASSERT_EQ(receiver.receive(Wait::kYes), Channel::Received::kSome);
  NextFrame next = receiver.next();
  ASSERT_TRUE(std::holds_alternative<Frame>(next));
  EXPECT_TRUE(std::ranges::equal(std::get<Frame>(next).payload, values));
}

TEST(Channel, TheOtherEndIsGone) {
  auto [a, b] = make_socket_pair();
  Channel channel(std::move(a));
  b.reset();
  EXPECT_EQ(channel.receive(Wait::kYes), Channel::Received::kClosed);
  channel.queue(make_frame("{}", {}));
  EXPECT_EQ(channel.flush(Wait::kYes), Channel::Sent::kClosed);  // and no SIGPIPE
}

}  // namespace
}  // namespace distgrad
