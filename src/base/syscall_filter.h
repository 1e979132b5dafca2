// System calls that code under test has no use for, and that reach over to other processes, into
// the kernel, or out of a sandbox. For the moment between fork and exec: nothing here allocates
// memory.
#pragma once

namespace distgrad {

// From here on they fail with EPERM, in this process and all that it starts. It must have
// PR_SET_NO_NEW_PRIVS. False, with errno set, where the kernel cannot do it.
bool filter_system_calls();

}  // namespace distgrad
