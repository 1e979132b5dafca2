#include "launched/programs.h"

#include <utility>

#include "pool/installation.h"
#include "pool/worker_pool.h"

namespace distgrad {
namespace {

std::vector<std::pair<std::string, std::string>> names() {
  return {{"distgrad-rank:", rank_executable()},
          {"python-ranks:", python_ranks_of(executable_folder()).string()}};
}

}  // namespace

std::vector<std::string> anywhere(std::vector<std::string> command) {
  for (const auto& [name, path] : names())
    for (std::string& word : command)
      if (word == path) word = name;
  return command;
}

std::vector<std::string> here(std::vector<std::string> command) {
  for (const auto& [name, path] : names())
    for (std::string& word : command)
      if (word == name) word = path;
  return command;
}

}  // namespace distgrad
