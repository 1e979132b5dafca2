// Which of a launcher's ranks are not there any more, and when and how that is said.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace distgrad {

// Ranks that are lost together are reported together, whatever the order in which the kernel gives
// their connections up. Times are of monotonic_ns().
class LostRanks {
 public:
  // Between the first rank that is lost and saying so: one host's end takes several with it.
  static constexpr std::int64_t kTogetherNs = 100'000'000;

  using HostOf = std::function<std::string(int rank)>;

  // `how`: "died", "was ended by SIGTERM", "is not heard any more: ...".
  void add(int rank, const std::string& how, std::int64_t now_ns);
  // One whose connection broke in silence, as it does where a host or its network is gone.
  void add_silent(int rank, const std::string& host, int error, std::int64_t now_ns);

  bool any() const { return since_ns_ != 0; }
  // Whether it is time to report them. `has_open`: whether a rank of this host is still heard; of a
  // host that is gone, those follow.
  bool is_due(std::int64_t now_ns, const std::function<bool(const std::string&)>& has_open) const;

  // "ranks 2-3 on node1 are not heard any more: Connection timed out".
  std::string text(const HostOf& host_of) const;

 private:
  std::map<std::string, std::set<int>> by_how_;
  std::set<std::string> silent_hosts_;
  std::int64_t since_ns_ = 0;  // 0: none is lost
};

}  // namespace distgrad
