// A socket that listens on loopback alone. By itself c10d's TCPStore listens on every address, for whoever comes.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace distgrad {

struct LoopbackListener {
  UniqueFd socket;  // to be given to TCPStoreOptions::masterListenFd
  std::uint16_t port = 0;
};

// Throws SystemError.
LoopbackListener listen_on_loopback();

}  // namespace distgrad
