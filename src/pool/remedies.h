// Says what helps if a rank or a simulator fails because the machine ran short of something.
#pragma once

#include <string>

namespace distgrad {

// Appends the remedy to a message that says that memory or open files ran out.
std::string with_remedy(std::string message);

}  // namespace distgrad
