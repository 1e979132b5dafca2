// Helps ranks of several hosts to meet: it resolves names, listens, and connects so that the end of
// a host is noticed.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace distgrad {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  bool is_loopback() const;
  bool is_any() const;  // 0.0.0.0 or ::
  int port() const;
  void set_port(int port);
  std::string host() const;  // numeric
  std::string text() const;  // "10.77.0.1:29501"
};

// Returns a name's addresses in the resolver's order. Asks Slurm for a node that no resolver knows.
// Empty, with the reason in `error`, where there are none.
std::vector<Address> addresses_of(const std::string& host, std::string* error);

// Returns whether an interface of this machine has the address.
bool is_ours(const Address& address);

Address own_end(int socket);
Address other_end(int socket);

// Returns the name of the interface that has the address; empty where none has it.
std::string interface_with(const Address& address);

// Returns the address to listen at for `host`, which is this machine. Returns all addresses where
// other hosts are to come and the name means something else to them (localhost, or an address that
// no interface has). Throws SystemError.
Address address_to_listen_at(const std::string& host, bool others_come);

// Listens there, at the first of the ports that is free. Throws SystemError.
UniqueFd listen_at(const std::string& host, int first_port, bool others_come);

// Says how many ports are tried, from the first one on.
inline constexpr int kPortsTried = 16;

// Returns an empty descriptor where nobody listens there or the timeout passes.
UniqueFd connect_to(const Address& address, int timeout_ms);

// Makes the socket send small messages at once, and notice within about five seconds that a host or
// network is gone, whatever the processes do.
void watch_connection(int socket);

}  // namespace distgrad
