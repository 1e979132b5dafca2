#include "launched/lost_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "launched/hosts.h"

namespace distgrad {
namespace {

// Replaces kTogetherNs where a host is not heard any more, as the kernel gives its connections up
// one by one.
constexpr std::int64_t kSilenceNs = 3'000'000'000;

std::string plural(const std::string& how, std::size_t count) {
  if (count == 1) return how;
  if (how.starts_with("was ")) return "were " + how.substr(4);
  if (how.starts_with("is ")) return "are " + how.substr(3);
  return how;
}

}  // namespace

void LostRanks::add(int rank, const std::string& how, std::int64_t now_ns) {
  by_how_[how].insert(rank);
  if (since_ns_ == 0) since_ns_ = now_ns;
}

void LostRanks::add_silent(int rank, const std::string& host, int error, std::int64_t now_ns) {
  add(rank, fmt::format("is not heard any more: {}", std::strerror(error)), now_ns);
  silent_hosts_.insert(host);
}

bool LostRanks::is_due(std::int64_t now_ns,
                       const std::function<bool(const std::string&)>& has_open) const {
  if (!any()) return false;
  const bool is_more_near = std::any_of(silent_hosts_.begin(), silent_hosts_.end(), has_open);
  return now_ns > since_ns_ + (is_more_near ? kSilenceNs : kTogetherNs);
}

std::string LostRanks::text(const HostOf& host_of) const {
  std::string text;
  for (const auto& [how, ranks] : by_how_) {
    std::map<std::string, std::vector<int>> by_host;
    for (const int rank : ranks) by_host[host_of(rank)].push_back(rank);
    for (const auto& [host, some] : by_host)
      text += fmt::format("{}{} on {} {}", text.empty() ? "" : "; ", rank_spans_text(some), host,
                          plural(how, some.size()));
  }
  return text;
}

}  // namespace distgrad
