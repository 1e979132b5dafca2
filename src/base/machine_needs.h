// Checks what a run needs of the machine before it starts. Otherwise something deep inside fails
// without saying what helps.
#pragma once

namespace distgrad {

// Returns whether an interface that is up has 127.0.0.1.
bool has_loopback();

// Throws UserError where the working folder was deleted.
void require_working_folder();

// Throws SystemError where the ranks could not reach each other.
void require_loopback();

}  // namespace distgrad
