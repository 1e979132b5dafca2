// Where the ranks of a world meet and how they talk: over loopback, unless the environment, written
// by distgrad where ranks are on several hosts, says otherwise (docs/protocol.md).
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace distgrad {

struct StoreListener {
  UniqueFd socket;  // to be given to TCPStoreOptions::masterListenFd
  std::uint16_t port = 0;
};

// For rank 0's store: by itself c10d's TCPStore listens on every address, for whoever comes. Throws
// SystemError.
StoreListener listen_for_ranks();

// The address at which this rank finds the store.
std::string store_host();

// The interface that Gloo uses.
std::string gloo_interface();

// The rank's number among those of its host; `rank` where all are on one.
int local_rank(int rank);
int local_size(int world_size);

}  // namespace distgrad
