// Rank programs' commands, from rank 0's host to another: distgrad's own files may lie elsewhere
// there.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

// With words in place of this installation's files, and back.
std::vector<std::string> anywhere(std::vector<std::string> command);
std::vector<std::string> here(std::vector<std::string> command);

}  // namespace distgrad
