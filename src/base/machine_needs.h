// What a run needs of the machine, looked for before it starts: else something deep inside fails,
// and says nothing of the remedy.
#pragma once

namespace distgrad {

// Whether an interface that is up has 127.0.0.1.
bool has_loopback();

// Throws UserError where the working folder was deleted.
void require_working_folder();

// Throws SystemError where ranks could not talk to each other.
void require_loopback();

}  // namespace distgrad
