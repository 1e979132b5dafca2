// What a process that runs strangers' code may still do, in a sandbox (sandbox.h). For the moment
// between fork and exec: nothing here allocates memory.
#pragma once

namespace distgrad {

// Where a confined process can write: an empty folder in memory of its own, which its children
// share.
inline constexpr const char* kPrivateFolder = "/dev/shm";

// Everything that is mounted, read-only and without devices, for this process and what it starts;
// none of the rights of the user namespace that it is in; no calls that are on the list
// (syscall_filter.h). It must have the rights to do so, and PR_SET_NO_NEW_PRIVS. What could not be
// done, with errno set; null: nothing.
const char* confine();

}  // namespace distgrad
