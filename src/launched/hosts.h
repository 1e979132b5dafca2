// Names the hosts of the ranks, as messages and reports show them.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

struct HostOfRank {
  std::string host;     // its name, with the address where several hosts have that name
  std::string address;  // the one at which the others reach it
};

// Labels the hosts, by rank, so that different hosts have different names. Ranks that come by
// loopback are on rank 0's host, unless their names say otherwise.
std::vector<HostOfRank> label_hosts(std::vector<HostOfRank> hosts);

// Returns for example "rank 3" or "ranks 0-2 and 5".
std::string rank_spans_text(const std::vector<int>& ranks);

// Returns for example "ranks 0-1 on n0, ranks 2-3 on n1"; empty where all ranks are on one host.
std::string hosts_text(const std::vector<HostOfRank>& hosts);

}  // namespace distgrad
