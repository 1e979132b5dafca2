// Translates the commands of rank programs between hosts, as distgrad's own files may lie elsewhere
// on another host.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

// anywhere() puts words in place of this installation's files, and here() does the reverse.
std::vector<std::string> anywhere(std::vector<std::string> command);
std::vector<std::string> here(std::vector<std::string> command);

}  // namespace distgrad
