// Rank 0's side of all that runs elsewhere: a process between the driver and the agents of the
// launcher's ranks. To the driver it is the zygote of each rank program, with the ranks' sockets,
// board and output as if they were on this machine; to the agents it speaks launched/link.h.
#pragma once

namespace distgrad {

// The words by which the driver starts it, and it starts rank 0's own agent: "distgrad WORD".
inline constexpr const char* kHubWord = "--launched-hub";
inline constexpr const char* kAgentWord = "--launched-agent";

// Driver to hub, on the socket that the hub is started with (kInheritedFd), each a frame with a
// JSON header:
//   {"kind": "listen", "job", "rank", "size", "local_rank", "local_size", "wait_s"}, with the
//   socket that listens
//   {"kind": "open", "command", "environment"}, with a zygote's control socket
//   {"kind": "end", "code"}
// Hub to driver:
//   {"kind": "joined", "hosts": [{"host", "address"}]}, by rank
//   {"kind": "lost", "message"}: ranks that are gone for good
// Runs until the driver is gone or told it to end; then all agents are gone. The exit code.
int be_hub();

}  // namespace distgrad
