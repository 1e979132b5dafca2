// A place apart for code that nobody has looked at.
#pragma once

namespace distgrad {

// From here on this program runs in a child of the process that called it, in user, network,
// process, mount and IPC namespaces of its own: it sees no other process, and of networks an own
// loopback interface alone. It can gain no privileges, has no descriptors but 0 to 2, and of the
// environment only what says how programs are found and what a terminal is. Ends with it, whatever
// was started. The process that called hands on signals and the exit code and does not return.
// What start_child() starts here is confined besides (confinement.h); this program, which writes
// reports, is not. Throws UserError where the kernel does not offer it. To be called before there
// are threads.
void enter_sandbox();

bool in_sandbox();

}  // namespace distgrad
