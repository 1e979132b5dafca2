#include "launched/handshake.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/sha256.h"
#include "base/version.h"
#include "launched/secret.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

constexpr std::size_t kRandomBytes = 16;

std::string proof(const std::string& secret, const char* whose, const std::string& job,
                  const std::string& of, const std::string& with) {
  return hmac_sha256(secret,
                     std::string("distgrad ") + whose + '\n' + job + '\n' + of + '\n' + with);
}

std::string text_of(const JoiningRank& who) {
  return header_text({{"rank", who.rank},
                      {"size", who.size},
                      {"local_rank", who.local_rank},
                      {"local_size", who.local_size},
                      {"host", who.host},
                      {"version", who.version}});
}

JoiningRank read_joining_rank(const std::string& text) {
  const Json json = parse_header(text);
  return {read_int(field(json, "rank"), 0),        read_int(field(json, "size"), 1),
          read_int(field(json, "local_rank"), -1), read_int(field(json, "local_size"), 0),
          read_text(field(json, "host")),          read_text(field(json, "version"))};
}

// Returns the next frame's header; empty where none came in time.
std::string next_header(Channel& channel, std::int64_t end_ns) {
  for (;;) {
    NextFrame next = channel.next();
    if (auto* frame = std::get_if<Frame>(&next)) return frame->header;
    if (std::holds_alternative<BadFrame>(next)) return {};
    const std::int64_t left = end_ns - monotonic_ns();
    pollfd fd{channel.fd(), POLLIN, 0};
    if (left <= 0 || poll(&fd, 1, static_cast<int>(left / 1'000'000 + 1)) <= 0) return {};
    if (channel.receive(Wait::kNo) == Channel::Received::kClosed) return {};
  }
}

void say_now(Channel& channel, const std::string& header) {
  channel.queue(make_inline_frame(header, {}));
  channel.flush(Wait::kNo);  // does not block, as a new connection takes some hundred bytes at once
}

}  // namespace

JoiningRank joining_rank_of(const LaunchedWorld& world) {
  char name[256] = {};
  const char* node = std::getenv("SLURMD_NODENAME");
  std::string host = node && *node ? node : gethostname(name, sizeof name - 1) == 0 ? name : "";
  return {world.rank,       world.size,      world.local_rank,
          world.local_size, std::move(host), std::string(kVersion)};
}

Admission::Admission(UniqueFd socket, const std::string& job, const std::string& secret)
    : channel_(std::move(socket)), job_(job), secret_(secret) {
  channel_.set_limits(kJoiningLimits);
}

void Admission::say(const std::string& header) { say_now(channel_, header); }

Admission::State Admission::receive() {
  const Channel::Received received = channel_.receive(Wait::kNo);
  for (;;) {
    NextFrame next = channel_.next();
    if (std::holds_alternative<NoFrameYet>(next))
      return received == Channel::Received::kClosed ? State::kRefused : State::kWaiting;
    const auto* frame = std::get_if<Frame>(&next);
    const bool was_greeted = !theirs_.empty();
    if (!frame || !take(frame->header)) return State::kRefused;
    if (was_greeted) return State::kProven;
  }
}

bool Admission::take(const std::string& header) try {
  const Json json = parse_header(header);
  if (theirs_.empty()) {
    theirs_ = read_text(field(json, "hello"));
    if (theirs_.size() != 2 * kRandomBytes) return false;
    ours_ = random_digits(kRandomBytes);
    say(header_text(
        {{"challenge", ours_}, {"proof", proof(secret_, "rank 0", job_, theirs_, ours_)}}));
    return true;
  }
  const std::string& who = read_text(field(json, "who"));
  if (!are_same_digests(read_text(field(json, "proof")),
                        proof(secret_, "a rank", job_, ours_, theirs_ + who)))
    return false;
  who_ = read_joining_rank(who);
  return true;
} catch (const BadMessage&) {
  return false;
}

Channel Admission::welcome() {
  say(header_text({{"welcome", true}}));
  channel_.set_limits({std::size_t{1} << 31, std::size_t{1} << 40});
  return std::move(channel_);
}

void Admission::refuse(const std::string& why) {
  say(header_text({{"welcome", false}, {"why", why}}));
}

Welcome ask_for_admission(UniqueFd socket, const JoiningRank& who, const std::string& job,
                          const std::string& secret, int timeout_ms) try {
  const std::int64_t end = monotonic_ns() + std::int64_t{timeout_ms} * 1'000'000;
  Channel channel(std::move(socket));
  channel.set_limits(kJoiningLimits);
  const std::string ours = random_digits(kRandomBytes);
  say_now(channel, header_text({{"hello", ours}}));
  const Json answer = parse_header(next_header(channel, end));
  const std::string& theirs = read_text(field(answer, "challenge"));
  if (!are_same_digests(read_text(field(answer, "proof")),
                        proof(secret, "rank 0", job, ours, theirs)))
    return {};
  const std::string self = text_of(who);
  say_now(channel, header_text({{"who", self},
                                {"proof", proof(secret, "a rank", job, theirs, ours + self)}}));
  const Json verdict = parse_header(next_header(channel, end));
  if (!read_bool(field(verdict, "welcome")))
    return {std::nullopt, read_text(field(verdict, "why"))};
  channel.set_limits({std::size_t{1} << 31, std::size_t{1} << 40});
  return {std::move(channel), {}};
} catch (const BadMessage&) {
  return {};
}

}  // namespace distgrad
