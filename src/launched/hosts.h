// The hosts that the ranks are on, as messages and reports name them.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

struct HostOfRank {
  std::string host;     // its name; with the address where several have that name
  std::string address;  // at which the others reach it
};

// By rank, with names that differ where the hosts do. Ranks that come by loopback are on one host
// with rank 0, unless their names say otherwise.
std::vector<HostOfRank> label_hosts(std::vector<HostOfRank> hosts);

// "rank 3", "ranks 0-2 and 5".
std::string rank_spans_text(const std::vector<int>& ranks);

// "ranks 0-1 on n0, ranks 2-3 on n1"; empty where all are on one.
std::string hosts_text(const std::vector<HostOfRank>& hosts);

}  // namespace distgrad
