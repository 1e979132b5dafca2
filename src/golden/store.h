// Manages a folder of golden files.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad::golden {

class Store {
 public:
  explicit Store(std::string folder);

  const std::string& folder() const { return folder_; }

  // Returns FOLDER/<path of the scenario>. That path is relative to the parent of FOLDER, or else
  // to the working directory. Throws UserError where the scenario lies in neither.
  std::string path_of(const std::string& scenario) const;

  // Returns, sorted, the golden files below FOLDER whose scenario no longer exists.
  std::vector<std::string> without_scenario() const;

  // Replaces the simulation's losses, gradients and bounds by the case's stored ones. Returns an
  // empty text, or why there is nothing to replace them by.
  std::string replace_truth(const Case&, const Program&, Simulation&);

 private:
  struct Loaded {
    std::optional<GoldenFile> file;
    std::string why;  // why no file can be used
  };
  const Loaded& loaded(const Scenario&);

  std::string folder_;
  std::map<std::string, Loaded> by_scenario_;
};

// Returns the SHA-256 of the scenario file's canonical form. Throws InvalidScenario where the file
// cannot be read.
std::string scenario_sha256(const std::string& path);

// Returns nothing where there is no such file. Throws UserError where it cannot be read.
std::optional<std::string> read_if_there(const std::string& path);

// Does for one record what Store::replace_truth() does.
std::string put_in_place(const CaseRecord&, const Program&, Simulation&);

}  // namespace distgrad::golden
