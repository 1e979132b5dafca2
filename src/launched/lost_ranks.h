// Notes which of a launcher's ranks are lost, and decides when to say so.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace distgrad {

// Reports together the ranks that are lost together, in whatever order the kernel gives their
// connections up. Times are those of monotonic_ns().
class LostRanks {
 public:
  // Passes from the first lost rank to the report, as one host's end takes several ranks with it.
  static constexpr std::int64_t kTogetherNs = 100'000'000;

  using HostOf = std::function<std::string(int rank)>;

  // `how` is for example "died", "was ended by SIGTERM" or "is not heard any more: ...".
  void add(int rank, const std::string& how, std::int64_t now_ns);
  // Adds a rank whose connection broke in silence, as happens where a host or its network is gone.
  void add_silent(int rank, const std::string& host, int error, std::int64_t now_ns);

  bool any() const { return since_ns_ != 0; }
  // Returns whether it is time to report. `has_open` says whether a rank of this host is still
  // heard; if a host is gone, its other ranks follow soon.
  bool is_due(std::int64_t now_ns, const std::function<bool(const std::string&)>& has_open) const;

  // Returns for example "ranks 2-3 on node1 are not heard any more: Connection timed out".
  std::string text(const HostOf& host_of) const;

 private:
  std::map<std::string, std::set<int>> by_how_;
  std::set<std::string> silent_hosts_;
  std::int64_t since_ns_ = 0;  // 0: none is lost
};

}  // namespace distgrad
