// Does rank 0's side of all that runs elsewhere, as a process between the driver and the agents of
// the launcher's ranks. To the driver it is the zygote of each rank program, with the ranks'
// sockets, board and output as if they were on this machine. With the agents it speaks
// launched/link.h.
#pragma once

namespace distgrad {

// The driver starts the hub, and the hub starts rank 0's own agent, as "distgrad WORD".
inline constexpr const char* kHubWord = "--launched-hub";
inline constexpr const char* kAgentWord = "--launched-agent";

// Runs the hub until the driver is gone or told it to end, and all agents are gone. Returns the
// exit code. The driver sends, on the socket that the hub is started with (kInheritedFd), frames
// with a JSON header:
//   {"kind": "listen", "job", "size", "local_rank", "local_size", "wait_s"}, with the socket that
//   listens
//   {"kind": "open", "command", "environment"}, with a zygote's control socket
//   {"kind": "end", "code"}
// The hub sends:
//   {"kind": "joined", "hosts": [{"host", "address"}]}, by rank
//   {"kind": "lost", "message"}: ranks that are gone for good
int be_hub();

}  // namespace distgrad
