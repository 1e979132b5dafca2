// Where ranks of several hosts meet: names to addresses, a socket to listen on, connections that
// notice a host's end.
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
  bool is_any() const;  // 0.0.0.0, ::
  int port() const;
  void set_port(int port);
  std::string host() const;  // numeric
  std::string text() const;  // "10.77.0.1:29501"
};

// Of a name, in the resolver's order; a node of Slurm's that no resolver knows is asked of Slurm.
// Empty: there are none, with the reason in `error`.
std::vector<Address> addresses_of(const std::string& host, std::string* error);

// Whether an interface of this machine has it.
bool is_ours(const Address& address);

Address own_end(int socket);
Address other_end(int socket);

// The interface with that address; empty: none has.
std::string interface_with(const Address& address);

// Where to listen on `host`, this one. Where other hosts are to come and the name means something
// else to them (localhost, or an address that no interface has), all addresses. Throws SystemError.
Address address_to_listen_at(const std::string& host, bool others_come);

// There, at the first of the ports that is free. Throws UserError, SystemError.
UniqueFd listen_at(const std::string& host, int first_port, bool others_come);

// How many ports are tried from the first one on.
inline constexpr int kPortsTried = 16;

// None where nobody listens there, or it takes longer.
UniqueFd connect_to(const Address& address, int timeout_ms);

// Small messages at once; a host or network that is gone is noticed within about five seconds,
// whatever the processes do.
void watch_connection(int socket);

}  // namespace distgrad
