// Manages the secret that only the ranks of one user's job know, by which they prove to each other
// that they belong together.
#pragma once

#include <string>

namespace distgrad {

// Returns DISTGRAD_SECRET, else the content of $XDG_STATE_HOME/distgrad/secret
// (~/.local/state/distgrad/secret). That file is made, readable by the user alone, where it does
// not exist. Throws UserError where neither can be had.
std::string shared_secret();

// Returns so many random bytes as hexadecimal digits. Throws SystemError.
std::string random_digits(std::size_t bytes);

}  // namespace distgrad
