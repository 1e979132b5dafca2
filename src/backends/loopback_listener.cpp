#include "backends/loopback_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace distgrad {

LoopbackListener listen_on_loopback() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || bind(socket.get(), generic, size) != 0 || listen(socket.get(), SOMAXCONN) != 0 ||
      getsockname(socket.get(), generic, &size) != 0)
    throw SystemError(std::string("cannot listen on 127.0.0.1, which the ranks meet at: ") + std::strerror(errno) +
                      "; is the loopback interface up (ip link set lo up)?");
  return {std::move(socket), ntohs(address.sin_port)};
}

}  // namespace distgrad
