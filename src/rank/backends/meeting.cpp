#include "rank/backends/meeting.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace distgrad {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

bool is_on_several_hosts() { return std::getenv("DISTGRAD_STORE_HOST") != nullptr; }

}  // namespace

StoreListener listen_for_ranks() {
  const std::string host = variable("DISTGRAD_STORE_LISTEN", kLoopback);
  addrinfo hints{}, *address = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(host.c_str(), "0", &hints, &address) != 0)
    throw SystemError(host + " is no address to listen at");
  UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool listens = socket && bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
                       listen(socket.get(), SOMAXCONN) == 0;
  const int reason = errno;
  freeaddrinfo(address);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (!listens || getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    throw SystemError(
        "cannot listen on " + host + ", which the ranks meet at: " + std::strerror(reason) +
        (host == kLoopback ? "; is the loopback interface up (ip link set lo up)?" : ""));
  return {std::move(socket), ntohs(reinterpret_cast<const sockaddr_in*>(&bound)
                                       ->sin_port)};  // sin_port lies at one place in both families
}

std::string store_host() { return variable("DISTGRAD_STORE_HOST", kLoopback); }

std::string gloo_interface() {
  return is_on_several_hosts() ? variable("GLOO_SOCKET_IFNAME", "lo") : "lo";
}

int local_rank(int rank) {
  return is_on_several_hosts() ? std::atoi(variable("DISTGRAD_LOCAL_RANK", "0").c_str()) : rank;
}

int local_size(int world_size) {
  return is_on_several_hosts()
             ? std::min(world_size, std::atoi(variable("DISTGRAD_LOCAL_SIZE", "1").c_str()))
             : world_size;
}

}  // namespace distgrad
