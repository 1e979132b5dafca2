// Gives a process what Linux lets it have for itself. Runs between fork and exec, so nothing here
// allocates memory.
#pragma once

#include <sys/types.h>

namespace distgrad {

// Maps this user and group to themselves in a new user namespace. Returns what could not be done,
// with errno set; null on success.
const char* map_user(uid_t user, gid_t group);

// Raises the loopback interface of a new network namespace; returns the same.
const char* raise_loopback();

// Returns whether enter_own_network() would succeed. Tries it once in a child process, as half of
// it cannot be undone.
bool can_have_own_network();

// Gives this process and what it starts a network that has only a loopback interface. Clears
// PR_SET_PDEATHSIG.
bool enter_own_network();

}  // namespace distgrad
