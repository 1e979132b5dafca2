#include "base/machine_needs.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <filesystem>

#include "base/error.h"
#include "base/limits.h"
#include "base/namespaces.h"

namespace distgrad {

bool has_loopback() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return false;
  bool found = false;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
      continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    found = found || address->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
  }
  freeifaddrs(first);
  return found;
}

void require_working_folder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::current_path(error);
  if (error)
    throw UserError("the working folder is gone (" + error.message() +
                    "); cd into one that is there");
}

void require_loopback() {
  const bool bring_their_own = !limits().host_network && can_have_own_network();
  if (!bring_their_own && !has_loopback())
    throw SystemError("no interface has 127.0.0.1, over which the ranks talk; `ip link set lo up`");
}

}  // namespace distgrad
