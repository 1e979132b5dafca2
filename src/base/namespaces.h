// What Linux lets a process have for itself. For the moment between fork and exec: nothing here
// allocates memory.
#pragma once

#include <sys/types.h>

namespace distgrad {

// In a new user namespace: this user and group under their own numbers. What could not be done,
// with errno set; null: nothing.
const char* map_user(uid_t user, gid_t group);

// The same of the loopback interface of a new network namespace.
const char* raise_loopback();

// Whether enter_own_network() would succeed: tried once, in a child process, as there is no way
// back from half of it.
bool can_have_own_network();

// A network of its own for this process and what it starts, with nothing in it but a loopback
// interface. Clears PR_SET_PDEATHSIG.
bool enter_own_network();

}  // namespace distgrad
