// Restricts a process that runs strangers' code in a sandbox (sandbox.h). Runs between fork and
// exec, so nothing here allocates memory.
#pragma once

namespace distgrad {

// Names the only place where a confined process can write: an empty folder in memory of its own,
// which its children share.
inline constexpr const char* kPrivateFolder = "/dev/shm";

// Makes everything mounted read-only and without devices (but /dev/null and its like), for this
// process and what it starts, drops all rights in its user namespace, and refuses the calls on the
// list (syscall_filter.h). The process must have the rights to do so, and PR_SET_NO_NEW_PRIVS.
// Returns what could not be done, with errno set; null on success.
const char* confine();

}  // namespace distgrad
