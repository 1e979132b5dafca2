// Says where the ranks of a world meet and how they talk: over loopback, unless distgrad set the
// environment otherwise because the ranks are on several hosts (docs/protocol.md).
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace distgrad {

struct StoreListener {
  UniqueFd socket;  // for TCPStoreOptions::masterListenFd
  std::uint16_t port = 0;
};

// Opens the socket for rank 0's store: c10d's TCPStore by itself listens on every address, for
// anybody. Throws SystemError.
StoreListener listen_for_ranks();

// Returns the address at which this rank finds the store.
std::string store_host();

// Names the interface that Gloo uses.
std::string gloo_interface();

// Returns the rank's number among those of its host; `rank` if all are on one.
int local_rank(int rank);
int local_size(int world_size);

}  // namespace distgrad
