// Encloses code that nobody has looked at.
#pragma once

namespace distgrad {

// Runs this program from here on in a child of the process that called it, in user, network,
// process, mount and IPC namespaces of its own. The child sees no other process and no network but
// its own loopback interface. It can gain no privileges, has only the descriptors 0 to 2, and keeps
// only environment variables that hold no secret. All that was started ends with it. The process
// that called passes on signals and the exit code and does not return. What start_child() starts
// here is confined besides (confinement.h); this program, which writes reports, is not. Throws
// UserError where the kernel does not offer it. Call it before there are threads.
void enter_sandbox();

bool in_sandbox();

}  // namespace distgrad
