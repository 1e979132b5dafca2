// What the ranks of one user's job know and nobody else: proves to each other that they belong
// together.
#pragma once

#include <string>

namespace distgrad {

// DISTGRAD_SECRET, else the content of $XDG_STATE_HOME/distgrad/secret
// (~/.local/state/distgrad/secret), which is made, readable by the user alone, where it is not
// there. Throws UserError where neither can be had.
std::string shared_secret();

// So many random bytes, in hexadecimal digits. Throws SystemError.
std::string random_digits(std::size_t bytes);

}  // namespace distgrad
