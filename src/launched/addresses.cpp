#include "launched/addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace distgrad {
namespace {

bool same_host(const sockaddr* a, const Address& b) {
  if (!a || a->sa_family != b.family()) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(&b.storage)->sin_addr.s_addr;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(&b.storage)->sin6_addr,
                     sizeof(in6_addr)) == 0;
}

std::vector<Address> resolved(const std::string& host, bool numeric, std::string* error) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = numeric ? AI_NUMERICHOST : 0;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  std::vector<Address> found;
  if (failed) {
    if (error) *error = gai_strerror(failed);
    return found;
  }
  for (const addrinfo* one = list; one; one = one->ai_next) {
    Address& address = found.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  freeaddrinfo(list);
  return found;
}

bool is_plain_name(const std::string& text) {
  return !text.empty() && text[0] != '-' &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == text.npos;
}

// Returns NodeAddr of `scontrol show node`; empty where there is no Slurm or no such node.
std::string address_by_slurm(const std::string& node) {
  if (!is_plain_name(node)) return {};
  const std::string command = "scontrol show node " + node + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  if (!pipe) return {};
  std::string text(1 << 14, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe.get()));
  constexpr std::string_view kKey = "NodeAddr=";
  const std::size_t at = text.find(kKey);
  if (at == text.npos) return {};
  return text.substr(at + kKey.size(), text.find_first_of(" \n", at) - at - kKey.size());
}

Address any_address(int family) {
  Address any;
  any.storage.ss_family = static_cast<sa_family_t>(family);  // the address 0 means any
  any.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return any;
}

}  // namespace

bool Address::is_loopback() const {
  if (family() == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool Address::is_any() const {
  if (family() == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

int Address::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

// The port lies at the same place in both families.
void Address::set_port(int port) {
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(static_cast<std::uint16_t>(port));
}

std::string Address::host() const {
  char text[NI_MAXHOST] = {};
  const auto* generic = reinterpret_cast<const sockaddr*>(&storage);
  return getnameinfo(generic, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

std::string Address::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                              : fmt::format("{}:{}", host(), port());
}

std::vector<Address> addresses_of(const std::string& host, std::string* error) {
  std::vector<Address> found = resolved(host, false, error);
  if (!found.empty()) return found;
  const std::string by_slurm = address_by_slurm(host);
  return by_slurm.empty() ? found : resolved(by_slurm, false, error);
}

bool is_ours(const Address& address) { return !interface_with(address).empty(); }

std::string interface_with(const Address& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string name;
  for (const ifaddrs* one = list; one && name.empty(); one = one->ifa_next) {
    const bool whole_net =
        one->ifa_addr && one->ifa_addr->sa_family == AF_INET && address.is_loopback() &&
        address.family() == AF_INET &&
        ntohl(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr) >> 24 == 127;
    if (whole_net || same_host(one->ifa_addr, address)) name = one->ifa_name;
  }
  freeifaddrs(list);
  return name;
}

Address own_end(int socket) {
  Address address;
  address.size = sizeof address.storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    address.size = 0;
  return address;
}

Address other_end(int socket) {
  Address address;
  address.size = sizeof address.storage;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    address.size = 0;
  return address;
}

Address address_to_listen_at(const std::string& host, bool others_come) {
  std::string error;
  const bool is_numeric = !resolved(host, true, nullptr).empty();
  const std::vector<Address> all = addresses_of(host, &error);
  for (const Address& address : all) {
    // A name may mean loopback here, but this machine on other hosts.
    if (others_come && !is_numeric && address.is_loopback()) continue;
    if (is_ours(address)) return address;
  }
  if (!others_come)
    throw SystemError(fmt::format("{} is no address of this machine, where rank 0 runs", host));
  return any_address(all.empty() ? AF_INET : all[0].family());
}

UniqueFd listen_at(const std::string& host, int first_port, bool others_come) {
  Address address = address_to_listen_at(host, others_come);
  int error = 0;
  for (int port = first_port; port < first_port + kPortsTried; ++port) {
    UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) throw SystemError(std::string("socket: ") + std::strerror(errno));
    const int yes = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    address.set_port(port);
    if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) ==
            0 &&
        listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    error = errno;
  }
  throw SystemError(fmt::format("rank 0 can listen at no port from {} to {} of {}: {}", first_port,
                                first_port + kPortsTried - 1, address.host(),
                                std::strerror(error)));
}

UniqueFd connect_to(const Address& address, int timeout_ms) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) !=
      0) {
    if (errno != EINPROGRESS) return {};
    pollfd fd{socket.get(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&fd, 1, timeout_ms) <= 0 ||
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
      return {};
  }
  // A connection to a free port of one's own host may reach itself: both ends take the same port.
  if (own_end(socket.get()).text() == other_end(socket.get()).text()) return {};
  return socket;
}

void watch_connection(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // The kernel asks and answers, so a busy or stopped process is not taken for one that is gone.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
}

}  // namespace distgrad
