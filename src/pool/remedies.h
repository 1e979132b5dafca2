// What helps where a rank or a simulator fails for want of something of the machine's.
#pragma once

#include <string>

namespace distgrad {

// The message with the remedy behind it, if it says that memory or open files ran out.
std::string with_remedy(std::string message);

}  // namespace distgrad
