#include "launched/hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

namespace distgrad {

std::vector<HostOfRank> label_hosts(std::vector<HostOfRank> hosts) {
  std::map<std::string, std::set<std::string>> addresses;
  const auto place = [](const std::string& address) {
    return address.starts_with("127.") || address == "::1" ? "loopback" : address;
  };
  for (const HostOfRank& host : hosts) addresses[host.host].insert(place(host.address));
  for (HostOfRank& host : hosts)
    if (addresses[host.host].size() > 1) host.host += " (" + host.address + ")";
  return hosts;
}

std::string rank_spans_text(const std::vector<int>& ranks) {
  std::vector<std::string> spans;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    spans.push_back(end == i ? std::to_string(ranks[i])
                             : fmt::format("{}-{}", ranks[i], ranks[end]));
    i = end + 1;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < spans.size(); ++i)
    text += (i == 0 ? "" : i + 1 == spans.size() ? " and " : ", ") + spans[i];
  return text;
}

std::string hosts_text(const std::vector<HostOfRank>& hosts) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> by_host;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (!by_host.contains(hosts[rank].host)) order.push_back(hosts[rank].host);
    by_host[hosts[rank].host].push_back(static_cast<int>(rank));
  }
  if (order.size() < 2) return {};
  std::vector<std::string> parts;
  for (const std::string& host : order)
    parts.push_back(rank_spans_text(by_host[host]) + " on " + host);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace distgrad
