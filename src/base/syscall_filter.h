// Refuses system calls that code under test does not need and that reach over to other processes,
// into the kernel, or out of a sandbox. Runs between fork and exec, so nothing here allocates
// memory.
#pragma once

namespace distgrad {

// Makes those calls fail with EPERM in this process and all that it starts. The process must have
// PR_SET_NO_NEW_PRIVS. Returns false, with errno set, where the kernel cannot do it.
bool filter_system_calls();

}  // namespace distgrad
